def overlapped(backward, sending):
    ends = [sum(backward[layer:]) + sum(sending[:layer + 1]) for layer in range(len(backward))]
    return max(ends, default=0)
