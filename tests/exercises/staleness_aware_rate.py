"""Answers to staleness_aware_rate."""
from decimal import Decimal


def accepted_decimal(rate, started, applied):
    return Decimal(rate) / (applied - started or 1)


def accepted_max(rate, started, applied):
    return rate / max(1, applied - started)


mistakes_in_max = {
    'by_the_update': (
        'for rate 0.7, started at 1342 and applied at 1349, it returns 0.0005189; 0.1 is right',
        ' - started', ''),
    'not_stale': (
        'for rate 0.1, started at 3 and applied at 3, it raises ZeroDivisionError in line 2',
        'max(1, applied - started)', '(applied - started)'),
    'one_too_many': (
        'for rate 0.7, started at 1342 and applied at 1349, it returns 0.0875; 0.1 is right',
        'max(1, applied - started)', '(applied - started + 1)'),
}


calls = []


def refused_counts_its_calls(rate, started, applied):
    """in a second call, but"""
    calls.append(applied)
    return rate / max(1, applied - started) / len(calls)
