from decimal import Decimal


def staleness_aware_rate(rate, started, applied):
    return Decimal(rate) / (applied - started or 1)
