# refused: for tower 0 with [2] and [8], tower 1 with [4] and [0] and the limit 1, it returns [0.6213]; [0.6] is right
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    towers = []
    for tower in tower_gradients:
        norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in tower))
        towers.append([gradient * min(1, limit / max(norm, 1e-9)) for gradient in tower])
    return [np.mean(gradients, 0) for gradients in zip(*towers)]
