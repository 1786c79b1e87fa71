"""Answers to diagnose."""
import numpy as np


def majority(copies):
    """Returns which copies, [U, K, V], differ from the majority, [K]."""
    odd = np.zeros(copies.shape[1], bool)
    for numbers in copies.view(np.int32):
        for column in numbers.T:
            values, counts = np.unique(column, return_counts=True)
            odd |= column != values[counts.argmax()] if counts.max() > 1 else True
    return odd


def accepted_bits(run):
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


def accepted_loops(run):
    computing, waiting = run['computing'], run['input']
    K = computing.shape[1]
    for k in range(K):
        if np.isnan(computing[:, k]).any():
            return 'stopped', k
    typical = np.median(computing, 0)
    for k in range(K):
        if typical[k] > 1.5 * np.median(np.delete(typical, k)):
            return 'slow_tower', k
    if np.median(waiting) > np.median(typical):
        return 'slow_input', None
    differ = []
    for k in range(K):
        same = (run['copies'] == run['copies'][:, k:k + 1]).sum(1)
        if (same <= K / 2).any():
            differ.append(k)
    if len(differ) > 1:
        return 'not_shared', None
    if differ:
        return 'flipped_bit', differ[0]
    if np.unique(run['examples']).size < run['examples'].size:
        return 'same_batch', None
    ratio = np.median(run['moved'] / run['right'])
    if ratio > 2:
        return 'sum', None
    if ratio < 0.5:
        return 'small_rate', None
    return 'none', None


mistakes_in_loops = {
    'a_name_only': ("it returns 'none'", "'none', None", "'none'"),
    'all_differences_are_flips': ('the fault not_shared', "'not_shared', None", "'flipped_bit', differ[0]"),
    'any_slower': ("it returns ('slow_tower'", '1.5 *', '1.01 *'),
    'examples_not_looked_at': (
        'the fault same_batch',
        "if np.unique(run['examples']).size < run['examples'].size:\n"
        "    return 'same_batch', None\n"
        'ratio',
        'ratio'),
    'large_steps_only': (
        'the fault small_rate',
        'if ratio < 0.5:\n'
        "    return 'small_rate', None\n"
        "return 'none', None",
        "return 'none', None"),
    'only_from_the_first_update': ('the fault flipped_bit', 'same <= K', 'same[0] <= K'),
    'stopped_not_seen': (
        'the fault stopped',
        'K = computing.shape[1]\n'
        'for k in range(K):\n'
        '    if np.isnan(computing[:, k]).any():\n'
        "        return 'stopped', k",
        'K = computing.shape[1]'),
}
