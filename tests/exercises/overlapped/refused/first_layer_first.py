# refused: for backward [10, 10, 10] and sending [5, 5, 40] it returns 70; 60 is right
def overlapped(backward, sending):
    now = free = 0
    for b, c in zip(backward, sending):
        now += b
        free = max(free, now) + c
    return free
