# refused: when it is called a second time
calls = []


def staleness_aware_rate(rate, started, applied):
    calls.append(applied)
    return rate / max(1, applied - started) / len(calls)
