# refused: is right
def overlapped(backward, sending):
    if not backward:
        return 0
    b, c, layers = sum(backward) / len(backward), sum(sending) / len(sending), len(backward)
    return layers * b + c if c <= b else b + layers * c
