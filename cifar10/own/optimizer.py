"""Imports a user's optimizer, a function in a Python file, and checks the rules of the update modes.

    def optimizer(rate):  # the learning rate of the step, a float32 scalar
        return tf.train.RMSPropOptimizer(rate)

If a mode keeps several copies of the variables, the function is called once for each copy.
"""
import functools
from collections.abc import Callable

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import seeded_graph, with_inputs
from cifar10.own import code
from cifar10.own.refusals import BrokenRule

_FLAG = 'optimizer'
_SHAPES = dict(filters=[3, 3, 2, 4], weights=[4, 3], biases=[3])  # of the variables that `check` makes


def optimizer(name: str) -> Callable[[tf.Tensor], tf.train.Optimizer]:
    """Imports 'FILE.py:FUNCTION'; returns a function (learning rate) -> optimizer."""
    return functools.partial(_make, name, code.function(_FLAG, name, 'rate'))


def _make(name, function, rate):
    with code.usage_errors(_FLAG, name):
        made = function(rate)
        if not isinstance(made, tf.train.Optimizer):
            kind = type(made)
            raise BrokenRule(f'it returns {kind.__module__}.{kind.__name__}; return a tf.compat.v1.train.Optimizer, '
                             'such as tf.compat.v1.train.RMSPropOptimizer(rate)')
    create_slots = made._create_slots  # the hook that derived classes override

    def create_slots_outside(var_list):
        # Otherwise names such as Adam's beta1_power contain the name scope where an update mode applies gradients.
        with tf.name_scope(None):
            create_slots(var_list)
    made._create_slots = create_slots_outside
    apply_gradients = made.apply_gradients

    def apply_in_file(*arguments, **options):
        with code.usage_errors(_FLAG, name):
            return apply_gradients(*arguments, **options)
    made.apply_gradients = apply_in_file
    return made


def check(name: str, averages_within: bool) -> None:
    """Raises a UsageError if an optimizer breaks a rule. Builds it once, over temporary variables.

    Args:
      name: 'FILE.py:FUNCTION'.
      averages_within: whether the update mode averages gradients within `apply_gradients`.
    """
    make = optimizer(name)
    with code.usage_errors(_FLAG, name), seeded_graph(), tf.device('/cpu:0'):
        global_step = tf.train.get_or_create_global_step()
        rate = tf.placeholder(tf.float32, [], 'rate')
        variables = [tf.get_variable(each, shape) for each, shape in _SHAPES.items()]
        unused = tf.get_variable('unused', [2])
        made = make(rate)
        _check_class(type(made), averages_within)
        gradients = [tf.placeholder(tf.float32, shape) for shape in _SHAPES.values()]
        applied = made.apply_gradients([*zip(gradients, variables), (None, unused)], global_step)
        needed = with_inputs([applied])
        if rate.op not in needed:
            raise BrokenRule('its steps do not depend on the learning rate; use the rate that the function is given')
        if not any(operation.type == 'AssignAddVariableOp' and operation.inputs[0] is global_step.handle
                   for operation in needed):
            raise BrokenRule('its apply_gradients does not increment the given global_step by 1; pass global_step to '
                             'super().apply_gradients')


def _check_class(kind, averages_within):
    """Checks that a class changes gradients only after averaging, and can update resource variables."""
    base = tf.train.Optimizer
    applies = kind.apply_gradients is not base.apply_gradients
    if kind.compute_gradients is not base.compute_gradients:
        raise BrokenRule(f"{kind.__name__} overrides compute_gradients, which gets one tower's gradients; override "
                         'apply_gradients instead, which gets their mean')
    if kind._resource_apply_dense is base._resource_apply_dense and not applies:
        raise BrokenRule(f'{kind.__name__} has no _resource_apply_dense(gradient, variable), so it cannot update '
                         'resource variables; write this method instead of _apply_dense')
    if applies and averages_within:
        raise BrokenRule(f'{kind.__name__} overrides apply_gradients, but this update mode does not give it mean '
                         'gradients; use --variable_update=replicated, which takes the same steps')
