# refused: is right
def staleness_aware_rate(rate, started, applied):
    return rate / min(max(1, applied - started), 12)
