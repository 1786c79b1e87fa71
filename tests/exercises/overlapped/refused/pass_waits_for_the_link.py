# refused: for backward [10, 10, 10] and sending [5, 5, 40] it returns 65; 60 is right
def overlapped(backward, sending):
    """Each layer begins when the gradient of the layer before has been sent, but for the last message."""
    now = sent = 0
    for b, c in zip(reversed(backward), reversed(sending)):
        now = max(now + b, sent)
        sent = now + c
    return sent
