# refused: for rate 0.1, started at 3 and applied at 3, it returns 0; 0.1 is right
def staleness_aware_rate(rate, started, applied):
    return rate / (applied - started) if applied > started else 0
