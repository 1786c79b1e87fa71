# refused: is right
def staleness_aware_rate(rate, started, applied):
    return round(rate / max(1, applied - started), 7)
