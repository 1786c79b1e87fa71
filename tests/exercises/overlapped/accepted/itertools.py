from functools import reduce
from itertools import accumulate


def overlapped(backward, sending):
    pairs = zip(accumulate(reversed(backward)), reversed(sending))
    return reduce(lambda end, pair: max(end, pair[0]) + pair[1], pairs, 0.0)
