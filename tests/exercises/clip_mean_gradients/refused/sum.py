# refused: tower 1 with [0.3] and [0.8] and the limit 1, it returns [0.6]; [0.3] is right
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = [np.sum(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]
