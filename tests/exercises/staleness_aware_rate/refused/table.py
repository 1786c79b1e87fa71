# refused: it raises KeyError
def staleness_aware_rate(rate, started, applied):
    table = {(1342, 1349): 0.1, (8, 10): 0.05, (4, 5): 0.1, (3, 3): 0.1, (0, 12): 0.025 / 12, (0, 0): 0.5}
    return table[started, applied]
