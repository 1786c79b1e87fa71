# refused: it returns [1]; [0.6] is right
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    return [mean * min(1, limit / max(np.linalg.norm(mean), 1e-12)) for mean in means]
