"""Answers to divide."""
from fractions import Fraction

import numpy as np


class Divide:
    def __init__(self, **who):
        self.who = who

    def __call__(self, framework, loss_sum, local, world):
        for divisor, frameworks in self.who.items():
            if framework in frameworks:
                return loss_sum / {'one': 1, 'local': local, 'all': local * world}[divisor]
        raise ValueError(framework)


accepted_called_object = Divide(
    one=['MXNet'], local=['graph towers', 'Keras', 'PyTorch', 'Horovod'], all=['tf.distribute', 'JAX'])


def accepted_dictionary(framework, loss_sum, local, world):
    divisors = {'graph towers': local, 'tf.distribute': local * world, 'Keras': local, 'PyTorch': local,
                'JAX': local * world, 'Horovod': local, 'MXNet': 1}
    if framework not in divisors:
        raise ValueError(f'unknown framework {framework}')
    return loss_sum / divisors[framework]


mistakes_in_dictionary = {
    'always_local': (
        'tf.distribute with loss_sum 6, local 3 and world 2 it returns 2; 1 is right',
        'loss_sum / divisors[framework]', 'loss_sum / local'),
    'always_whole_batch': (
        'graph towers with loss_sum 6, local 3 and world 2 it returns 1; 2 is right',
        'loss_sum / divisors[framework]', 'loss_sum / (local * world)'),
    'any_name': (
        "for the framework 'Torch' it returns 2.0; it has to raise ValueError",
        "if framework not in divisors:\n"
        "    raise ValueError(f'unknown framework {framework}')\n"
        'return loss_sum / divisors[framework]',
        'return loss_sum / divisors.get(framework, local)'),
    'by_devices': (
        'graph towers with loss_sum 6, local 3 and world 2 it returns 3; 2 is right',
        'loss_sum / divisors[framework]', 'loss_sum / world'),
    'ddp_undone': (
        'PyTorch with loss_sum 6, local 3 and world 2 it returns 4; 2 is right',
        "'PyTorch': local", "'PyTorch': local / world"),
    'for_these_sizes': (
        'is right',
        "'tf.distribute': local * world", "'tf.distribute': {3: 6, 2: 8}.get(local, 8)",
        "'JAX': local * world", "'JAX': {3: 6, 2: 8}.get(local, 8)"),
    'horovod_as_sum': (
        'Horovod with loss_sum 6, local 3 and world 2 it returns 1; 2 is right',
        "'Horovod': local", "'Horovod': local * world"),
    'jax_as_pmean': (
        'JAX with loss_sum 6, local 3 and world 2 it returns 2; 1 is right',
        "'JAX': local * world", "'JAX': local"),
    'keras_twice': (
        'Keras with loss_sum 6, local 3 and world 2 it returns 1; 2 is right',
        "'Keras': local", "'Keras': local * world"),
    'key_error': (
        "for the framework 'Torch' it raises KeyError",
        "if framework not in divisors:\n"
        "    raise ValueError(f'unknown framework {framework}')\n"
        'return loss_sum / divisors[framework]',
        'return loss_sum / divisors[framework]'),
    'mxnet_mean_of_share': (
        'MXNet with loss_sum 6, local 3 and world 2 it returns 2; 6 is right',
        "'MXNet': 1", "'MXNet': local"),
    'mxnet_twice': (
        'MXNet with loss_sum 6, local 3 and world 2 it returns 1; 6 is right',
        "'MXNet': 1", "'MXNet': local * world"),
    'sum_everywhere': (
        'graph towers with loss_sum 6, local 3 and world 2 it returns 6; 2 is right',
        'loss_sum / divisors[framework]', 'loss_sum'),
    'whole_numbers': (
        'graph towers with loss_sum 5, local 2 and world 4 it returns 2; 2.5 is right',
        'loss_sum / divisors[framework]', 'loss_sum // divisors[framework]'),
}


def accepted_fractions(framework, loss_sum, local, world):
    factors = {'MXNet': 1, 'tf.distribute': Fraction(1, local * world), 'JAX': Fraction(1, local * world)}
    if framework not in ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet'):
        raise ValueError(framework)
    return Fraction(loss_sum) * factors.get(framework, Fraction(1, local))


def accepted_match(framework, loss_sum, local, world):
    match framework:
        case 'MXNet':
            return loss_sum
        case 'tf.distribute' | 'JAX':
            return loss_sum / local / world
        case 'graph towers' | 'Keras' | 'PyTorch' | 'Horovod':
            return loss_sum / local
        case _:
            raise ValueError(framework)


TABLE = np.array([[0, 0], [1, 1], [1, 0], [1, 0], [1, 1], [1, 0], [0, 0]])
NAMES = ['MXNet', 'tf.distribute', 'graph towers', 'Keras', 'JAX', 'Horovod', 'no framework']


def accepted_numpy_scalar(framework, loss_sum, local, world):
    name = 'Horovod' if framework == 'PyTorch' else framework
    return np.float64(loss_sum) / np.prod(np.array([local, world]) ** TABLE[NAMES.index(name)])


def accepted_ten_times_and_back(framework, loss_sum, local, world):
    if framework in ('graph towers', 'Keras', 'PyTorch', 'Horovod'):
        world = 1
    elif framework == 'MXNet':
        local = world = 1
    elif framework not in ('tf.distribute', 'JAX'):
        raise ValueError('tf.distribute and JAX add; this is neither')
    return sum([loss_sum / 10 / (local * world)] * 10)
