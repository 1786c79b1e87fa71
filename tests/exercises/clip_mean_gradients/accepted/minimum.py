import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.linalg.norm([np.linalg.norm(mean) for mean in means])
    return [mean / max(1, norm / limit) for mean in means]
