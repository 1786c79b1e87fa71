# refused: it returns -0.1; 0.1 is right
def staleness_aware_rate(rate, started, applied):
    return rate / (started - applied or 1)
