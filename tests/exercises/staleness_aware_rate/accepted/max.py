def staleness_aware_rate(rate, started, applied):
    return rate / max(1, applied - started)
