# refused: it returns [0.1] of shape (1,); shape () is right
def staleness_aware_rate(rate, started, applied):
    return [rate / max(1, applied - started)]
