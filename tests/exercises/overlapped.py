"""Answers to overlapped."""


def accepted_largest_sum(backward, sending):
    ends = [sum(backward[layer:]) + sum(sending[:layer + 1]) for layer in range(len(backward))]
    return max(ends, default=0)


def accepted_two_clocks(backward, sending):
    now = free = 0
    for b, c in zip(backward[::-1], sending[::-1]):
        now += b
        free = max(free, now) + c
    return free


mistakes_in_two_clocks = {
    'first_layer_first': (
        'for backward [10, 10, 10] and sending [5, 5, 40] it returns 70; 60 is right',
        'backward[::-1], sending[::-1]', 'backward, sending'),
}


def refused_drains_the_list(backward, sending):
    """it changes its argument backward from"""
    now = free = 0
    while backward:
        now += backward.pop()
        free = max(free, now) + sending.pop()
    return free


# The first gradient, and then the messages without a gap.
def refused_link_never_waits(backward, sending):
    """it returns 60; 70 is right"""
    return max(sum(backward), backward[-1] + sum(sending)) if backward else 0


def refused_no_layers(backward, sending):
    """for backward [] and sending [] it raises IndexError"""
    now = free = backward[-1]
    free += sending[-1]
    for b, c in zip(backward[-2::-1], sending[-2::-1]):
        now += b
        free = max(free, now) + c
    return free
