import numpy as np


def overlapped(backward, sending):
    ready = np.cumsum(np.asarray(backward, float)[::-1])
    sent = np.cumsum(np.asarray(sending, float)[::-1])
    before = np.concatenate([[0.0], sent[:-1]])[:len(sent)]
    return sent[-1] + np.max(ready - before) if len(sent) else 0.0
