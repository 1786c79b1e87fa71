"""Answers to clip_mean_gradients."""
import numpy as np


def accepted_generator(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return (mean * (min(limit, norm) / norm) if norm else mean for mean in means)


def accepted_scale(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]


mistakes_in_scale = {
    'changes_the_first_tower': (
        'it changes its argument tower_gradients',
        'means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]',
        'total = tower_gradients[0]\n'
        'for tower in tower_gradients[1:]:\n'
        '    for i, gradient in enumerate(tower):\n'
        '        total[i] += gradient\n'
        'means = [each / len(tower_gradients) for each in total]'),
    'float32_overflow': ('it returns', 'gradients, 0', 'gradients, 0, dtype=np.float32'),
    'zero_norm': (
        'tower 1 with [0, 0] and the limit 1, it returns [nan, nan]; [0, 0] is right for variable 0',
        'mean * (limit / norm) if norm > limit else mean', 'mean * np.minimum(norm, limit) / norm'),
}


def refused_each_variable(tower_gradients, limit):
    """it returns [1]; [0.6] is right"""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    return [mean * min(1, limit / max(np.linalg.norm(mean), 1e-12)) for mean in means]
