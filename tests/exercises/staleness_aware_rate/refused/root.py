# refused: it returns 0.2646; 0.1 is right
def staleness_aware_rate(rate, started, applied):
    return rate / max(1, applied - started) ** 0.5
