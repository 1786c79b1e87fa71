"""Answers to divide."""
from fractions import Fraction


def accepted_dictionary(framework, loss_sum, local, world):
    divisors = {'graph towers': local, 'tf.distribute': local * world, 'Keras': local, 'PyTorch': local,
                'JAX': local * world, 'Horovod': local, 'MXNet': 1}
    if framework not in divisors:
        raise ValueError(f'unknown framework {framework}')
    return loss_sum / divisors[framework]


mistakes_in_dictionary = {
    'any_name': (
        "for the framework 'Torch' it returns 2.0; it has to raise ValueError",
        "if framework not in divisors:\n"
        "    raise ValueError(f'unknown framework {framework}')\n"
        'return loss_sum / divisors[framework]',
        'return loss_sum / divisors.get(framework, local)'),
    'keras_twice': (
        'Keras with loss_sum 6, local 3 and world 2 it returns 1; 2 is right',
        "'Keras': local", "'Keras': local * world"),
    'mxnet_mean_of_share': (
        'MXNet with loss_sum 6, local 3 and world 2 it returns 2; 6 is right',
        "'MXNet': 1", "'MXNet': local"),
    'whole_numbers': (
        'graph towers with loss_sum 5, local 2 and world 4 it returns 2; 2.5 is right',
        'loss_sum / divisors[framework]', 'loss_sum // divisors[framework]'),
}


def accepted_fractions(framework, loss_sum, local, world):
    factors = {'MXNet': 1, 'tf.distribute': Fraction(1, local * world), 'JAX': Fraction(1, local * world)}
    if framework not in ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet'):
        raise ValueError(framework)
    return Fraction(loss_sum) * factors.get(framework, Fraction(1, local))
