# refused: for backward [] and sending [] it raises IndexError
def overlapped(backward, sending):
    now = free = backward[-1]
    free += sending[-1]
    for b, c in zip(backward[-2::-1], sending[-2::-1]):
        now += b
        free = max(free, now) + c
    return free
