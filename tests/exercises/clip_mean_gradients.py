"""Answers to clip_mean_gradients."""
import numpy as np
import tensorflow.compat.v1 as tf


def accepted_generator(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return (mean * (min(limit, norm) / norm) if norm else mean for mean in means)


def accepted_graph_mode(tower_gradients, limit):
    with tf.Graph().as_default(), tf.Session() as session:
        means = [tf.reduce_mean(tf.stack(gradients), 0) for gradients in zip(*tower_gradients)]
        return session.run(tf.clip_by_global_norm(means, limit)[0])


def accepted_minimum(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.linalg.norm([np.linalg.norm(mean) for mean in means])
    return [mean / max(1, norm / limit) for mean in means]


def accepted_object_array(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    clipped = np.empty(len(means), object)
    clipped[:] = [mean * (limit / norm) if norm > limit else mean for mean in means]
    return clipped


def accepted_one_vector(tower_gradients, limit):
    flat = np.mean([np.concatenate([np.ravel(each) for each in tower]) for tower in tower_gradients], 0)
    flat = flat * min(1, limit / max(np.linalg.norm(flat), np.finfo(float).tiny))
    ends = np.cumsum([np.size(each) for each in tower_gradients[0]])
    return [part.reshape(np.shape(each)) for part, each in zip(np.split(flat, ends[:-1]), tower_gradients[0])]


def accepted_scale(tower_gradients, limit):
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]


mistakes_in_scale = {
    'a_variable_is_left_out': (
        'a list of 2 arrays is right',
        '[np.mean(gradients, 0) for gradients in zip(*tower_gradients)]',
        '[np.mean(gradients, 0) for gradients in zip(*tower_gradients)][1:]'),
    'always_scaled': (
        'it returns [0.6]; [0.3] is right',
        'mean * (limit / norm) if norm > limit else mean', 'mean * limit / norm'),
    'changes_the_first_tower': (
        'it changes its argument tower_gradients',
        'means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]',
        'total = tower_gradients[0]\n'
        'for tower in tower_gradients[1:]:\n'
        '    for i, gradient in enumerate(tower):\n'
        '        total[i] += gradient\n'
        'means = [each / len(tower_gradients) for each in total]'),
    'first_tower_only': (
        'is right for variable 0',
        '[np.mean(gradients, 0) for gradients in zip(*tower_gradients)]', 'tower_gradients[0]'),
    'float32_overflow': ('it returns', 'gradients, 0', 'gradients, 0, dtype=np.float32'),
    'largest_number': (
        'is right',
        'np.sqrt(sum(np.sum(np.square(mean)) for mean in means))', 'max(np.max(np.abs(mean)) for mean in means)'),
    'means_are_squeezed': (
        'of shape (); shape (1,) is right',
        'mean * (limit / norm) if norm > limit else mean',
        'np.squeeze(mean * (limit / norm) if norm > limit else mean)'),
    'rounded_limit': (
        'is right for variable',
        'norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))',
        'norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))\n'
        'limit = int(limit + 0.5)'),
    'squared_norm': (
        'it returns [0.12]; [0.6] is right',
        'np.sqrt(sum(np.sum(np.square(mean)) for mean in means))', 'sum(np.sum(np.square(mean)) for mean in means)'),
    'sum': ('tower 1 with [0.3] and [0.8] and the limit 1, it returns [0.6]; [0.3] is right', 'np.mean', 'np.sum'),
    'zero_norm': (
        'tower 1 with [0, 0] and the limit 1, it returns [nan, nan]; [0, 0] is right for variable 0',
        'mean * (limit / norm) if norm > limit else mean', 'mean * np.minimum(norm, limit) / norm'),
}


def accepted_tensorflow(tower_gradients, limit):
    means = [tf.reduce_mean(tf.stack(gradients), 0) for gradients in zip(*tower_gradients)]
    return tf.clip_by_global_norm(means, tf.constant(limit, tf.float64))[0]


def refused_each_number(tower_gradients, limit):
    """it returns [1]; [0.6] is right"""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    return [np.clip(mean, -limit, limit) for mean in means]


def refused_each_tower(tower_gradients, limit):
    """for tower 0 with [2] and [8], tower 1 with [4] and [0] and the limit 1, it returns [0.6213]; [0.6] is right"""
    towers = []
    for tower in tower_gradients:
        norm = np.sqrt(sum(np.sum(np.square(gradient)) for gradient in tower))
        towers.append([gradient * min(1, limit / max(norm, 1e-9)) for gradient in tower])
    return [np.mean(gradients, 0) for gradients in zip(*towers)]


def refused_each_variable(tower_gradients, limit):
    """it returns [1]; [0.6] is right"""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    return [mean * min(1, limit / max(np.linalg.norm(mean), 1e-12)) for mean in means]


def refused_none(tower_gradients, limit):
    """it returns None; a list of 2 arrays is right"""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    print(means)
