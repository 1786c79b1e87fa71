"""Answers to overlapped."""
import collections
from functools import reduce
from itertools import accumulate

import numpy as np


# A simulation: the queue of gradients that wait for the link.
def accepted_events(backward, sending):
    now, waiting, link = 0, collections.deque(), 0
    for layer in range(len(backward) - 1, -1, -1):
        now += backward[layer]
        waiting.append((now, sending[layer]))
    while waiting:
        ready, needs = waiting.popleft()
        link = ready + needs if ready > link else link + needs
    return link


def accepted_itertools(backward, sending):
    pairs = zip(accumulate(reversed(backward)), reversed(sending))
    return reduce(lambda end, pair: max(end, pair[0]) + pair[1], pairs, 0.0)


def accepted_largest_sum(backward, sending):
    ends = [sum(backward[layer:]) + sum(sending[:layer + 1]) for layer in range(len(backward))]
    return max(ends, default=0)


def accepted_numpy_scan(backward, sending):
    ready = np.cumsum(np.asarray(backward, float)[::-1])
    sent = np.cumsum(np.asarray(sending, float)[::-1])
    before = np.concatenate([[0.0], sent[:-1]])[:len(sent)]
    return sent[-1] + np.max(ready - before) if len(sent) else 0.0


# The first layer comes last: what the others have sent by then, or the pass, whichever is later.
def accepted_recursive(backward, sending):
    if not backward:
        return 0
    return max(accepted_recursive(backward[1:], sending[1:]), sum(backward)) + sending[0]


def accepted_two_clocks(backward, sending):
    now = free = 0
    for b, c in zip(backward[::-1], sending[::-1]):
        now += b
        free = max(free, now) + c
    return free


mistakes_in_two_clocks = {
    # Layers without variables are skipped, but their pass takes time.
    'empty_messages_are_left_out': (
        'for backward [1, 2, 3] and sending [0, 0, 0] it returns 0; 6 is right',
        'backward[::-1], sending[::-1]', 'reversed(backward), reversed(sending)',
        'free = max(free, now) + c',
        'if c:\n'
        '    free = max(free, now) + c'),
    'first_layer_first': (
        'for backward [10, 10, 10] and sending [5, 5, 40] it returns 70; 60 is right',
        'backward[::-1], sending[::-1]', 'backward, sending'),
    'longest_layers_first': (
        'is right',
        'zip(backward[::-1], sending[::-1])', 'sorted(zip(backward, sending), key=lambda pair: pair[1], reverse=True)'),
    'only_the_backward_pass_reversed': (
        'for backward [10, 10, 10] and sending [5, 5, 40] it returns 70; 60 is right',
        'backward[::-1], sending[::-1]', 'reversed(backward), sending'),
}


def refused_drains_the_list(backward, sending):
    """it changes its argument backward from"""
    now = free = 0
    while backward:
        now += backward.pop()
        free = max(free, now) + sending.pop()
    return free


def refused_formula_of_equal_layers(backward, sending):
    """is right"""
    if not backward:
        return 0
    b, c, layers = sum(backward) / len(backward), sum(sending) / len(sending), len(backward)
    return layers * b + c if c <= b else b + layers * c


def refused_larger_of_the_sums(backward, sending):
    """for backward [10, 10, 10] and sending [5, 5, 40] it returns 50; 60 is right"""
    return max(sum(backward), sum(sending))


# The first gradient, and then the messages without a gap.
def refused_link_never_waits(backward, sending):
    """it returns 60; 70 is right"""
    return max(sum(backward), backward[-1] + sum(sending)) if backward else 0


# As if the link could carry all messages at once.
def refused_messages_at_the_same_time(backward, sending):
    """for backward [10, 10, 10] and sending [5, 5, 40] it returns 50; 60 is right"""
    now, ends = 0, [0]
    for b, c in zip(reversed(backward), reversed(sending)):
        now += b
        ends.append(now + c)
    return max(ends)


def refused_no_layers(backward, sending):
    """for backward [] and sending [] it raises IndexError"""
    now = free = backward[-1]
    free += sending[-1]
    for b, c in zip(backward[-2::-1], sending[-2::-1]):
        now += b
        free = max(free, now) + c
    return free


# Each layer begins when the gradient of the layer before has been sent, but for the last message.
def refused_pass_waits_for_the_link(backward, sending):
    """for backward [10, 10, 10] and sending [5, 5, 40] it returns 65; 60 is right"""
    now = sent = 0
    for b, c in zip(reversed(backward), reversed(sending)):
        now = max(now + b, sent)
        sent = now + c
    return sent


def refused_sum_of_both(backward, sending):
    """for backward [10, 10, 10] and sending [5, 5, 40] it returns 80; 60 is right"""
    return sum(backward) + sum(sending)
