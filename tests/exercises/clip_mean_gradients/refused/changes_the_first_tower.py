# refused: it changes its argument tower_gradients
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    total = tower_gradients[0]
    for tower in tower_gradients[1:]:
        for i, gradient in enumerate(tower):
            total[i] += gradient
    means = [each / len(tower_gradients) for each in total]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]
