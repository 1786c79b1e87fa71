def staleness_aware_rate(rate, started, applied):
    staleness = applied - started
    if staleness == 0:
        return rate
    return rate / staleness
