"""Solutions of the exercises of lesson 12."""
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    """The mean over the towers first, then one norm over all variables."""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]
