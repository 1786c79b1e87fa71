# refused: it returns None; a list of 2 arrays is right
import numpy as np


def clip_mean_gradients(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    print(means)
