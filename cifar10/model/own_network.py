"""A user's own network: a function in a Python file, which must follow the rules that towers need.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

Each tower calls the function again, over the same variables.
"""
import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.model import NUM_CLASSES, Network
from cifar10.model.rehearsal import describe, rehearse

_FLAG = 'network'


def network(name: str) -> Network:
    """Imports the network that 'FILE.py:FUNCTION' names."""
    function = own.function(_FLAG, name, 'images, num_classes, training')
    return Network(functools.partial(_inference, name, function))


def _inference(name: str, function: Callable, images: tf.Tensor, training: bool = False,
               num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the user's network and checks what it returns; see `Network.inference`."""
    height, width = images.shape[1:3]
    fed = f'it is fed {height}x{width} images' if height else 'it is fed images of several sizes'
    with own.usage_errors(_FLAG, name, f'; {fed}: build it for this size, or change --image_size'):
        with tf.device('/cpu:0'):
            tf.train.get_or_create_global_step()  # which a network may ask for, in evaluation too
        # Resource variables, also where a file has asked for others.
        with tf.variable_scope(tf.get_variable_scope(), use_resource=True, auxiliary_name_scope=False):
            logits = function(images, num_classes, training)
        are_logits = isinstance(logits, tf.Tensor) and logits.dtype.is_floating and logits.shape.rank == 2 and (
            logits.shape[1] == num_classes) and logits.shape[:1].is_compatible_with(images.shape[:1])
        if not are_logits:
            raise own.BrokenRule(f'it returns {describe(logits)}; return logits, float [images, {num_classes}] ({fed}, '
                                 f'{describe(images)})')
        return tf.cast(logits, tf.float32)


def check(name: str, *arguments) -> list[str]:
    """Raises a UsageError if the network breaks a rule; returns warnings. The arguments are as for `rehearse`."""
    with own.usage_errors(_FLAG, name):
        found = rehearse(*arguments, execute_again=functools.partial(own.execute_again, name.rpartition(':')[0]))
    return [f'warning: --network={name}: {warning}' for warning in found]
