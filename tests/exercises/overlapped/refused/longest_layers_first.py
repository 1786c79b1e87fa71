# refused: is right
def overlapped(backward, sending):
    now = free = 0
    for b, c in sorted(zip(backward, sending), key=lambda pair: pair[1], reverse=True):
        now += b
        free = max(free, now) + c
    return free
