# refused: for rate 0.7, started at 1342 and applied at 1349, it returns 0.0005189; 0.1 is right
def staleness_aware_rate(rate, started, applied):
    return rate / max(1, applied)
