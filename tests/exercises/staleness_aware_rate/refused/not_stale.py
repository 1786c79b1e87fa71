# refused: for rate 0.1, started at 3 and applied at 3, it raises ZeroDivisionError in line 3
def staleness_aware_rate(rate, started, applied):
    return rate / (applied - started)
