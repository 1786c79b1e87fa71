import numpy as np


def majority(copies):
    """Returns which copies, [U, K, V], have not the bits of most of the others, [K]."""
    odd = np.zeros(copies.shape[1], bool)
    for numbers in copies.view(np.int32):
        for column in numbers.T:
            values, counts = np.unique(column, return_counts=True)
            odd |= column != values[counts.argmax()] if counts.max() > 1 else True
    return odd


def diagnose(run):
    unfinished = np.isnan(run['computing'][-1])
    if unfinished.any():
        return 'stopped', int(unfinished.argmax())
    seconds, waits = np.median(run['computing'], axis=0), np.median(run['input'], axis=0)
    if seconds.max() > 1.5 * np.sort(seconds)[1]:
        return 'slow_tower', int(seconds.argmax())
    if waits.mean() > seconds.mean():
        return 'slow_input', None
    odd = majority(run['copies'])
    if odd.any():
        return ('flipped_bit', int(odd.argmax())) if odd.sum() == 1 else ('not_shared', None)
    first = run['examples'][0]
    if (first == first[0]).all():
        return 'same_batch', None
    towers = len(seconds)
    factor = np.abs(run['moved']).sum() / np.abs(run['right']).sum()
    names = {1: 'none', towers: 'sum', 1 / towers: 'small_rate'}
    return names[min(names, key=lambda value: abs(np.log(factor / value)))], None
