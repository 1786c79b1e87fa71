# refused: it returns 60; 70 is right
def overlapped(backward, sending):
    """The first gradient, and then the messages without a gap."""
    return max(sum(backward), backward[-1] + sum(sending)) if backward else 0
