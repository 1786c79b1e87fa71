import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    flat = np.mean([np.concatenate([np.ravel(each) for each in tower]) for tower in tower_gradients], 0)
    flat = flat * min(1, limit / max(np.linalg.norm(flat), np.finfo(float).tiny))
    ends = np.cumsum([np.size(each) for each in tower_gradients[0]])
    return [part.reshape(np.shape(each)) for part, each in zip(np.split(flat, ends[:-1]), tower_gradients[0])]
