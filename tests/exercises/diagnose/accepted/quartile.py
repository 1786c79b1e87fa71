import numpy as np


def diagnose(run):
    computing, waiting = run['computing'], run['input']
    K = computing.shape[1]
    for k in range(K):
        if np.isnan(computing[:, k]).any():
            return 'stopped', k
    typical = np.quantile(computing, 0.25, 0)
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
