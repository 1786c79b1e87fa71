import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return (mean * (min(limit, norm) / norm) if norm else mean for mean in means)
