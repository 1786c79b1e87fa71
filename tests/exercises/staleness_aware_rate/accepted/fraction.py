from fractions import Fraction


def staleness_aware_rate(rate, started, applied):
    return Fraction(rate) / max(1, applied - started)
