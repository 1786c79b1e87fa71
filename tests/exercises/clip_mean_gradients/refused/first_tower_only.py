# refused: is right for variable 0
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = tower_gradients[0]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]
