"""Solutions of the exercises of lesson 5."""


def staleness_aware_rate(rate, started, applied):
    """The rate divided by the staleness, or by 1 if that is 0."""
    return rate / max(1, applied - started)
