import collections


def overlapped(backward, sending):
    """A simulation: the queue of gradients that wait for the link."""
    now, waiting, link = 0, collections.deque(), 0
    for layer in range(len(backward) - 1, -1, -1):
        now += backward[layer]
        waiting.append((now, sending[layer]))
    while waiting:
        ready, needs = waiting.popleft()
        link = ready + needs if ready > link else link + needs
    return link
