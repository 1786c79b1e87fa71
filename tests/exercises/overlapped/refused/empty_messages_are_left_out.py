# refused: for backward [1, 2, 3] and sending [0, 0, 0] it returns 0; 6 is right
def overlapped(backward, sending):
    """Layers without variables are skipped, but their pass takes time."""
    now = free = 0
    for b, c in zip(reversed(backward), reversed(sending)):
        now += b
        if c:
            free = max(free, now) + c
    return free
