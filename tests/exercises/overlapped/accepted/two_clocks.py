def overlapped(backward, sending):
    now = free = 0
    for b, c in zip(backward[::-1], sending[::-1]):
        now += b
        free = max(free, now) + c
    return free
