# refused: it changes its argument backward from
def overlapped(backward, sending):
    now = free = 0
    while backward:
        now += backward.pop()
        free = max(free, now) + sending.pop()
    return free
