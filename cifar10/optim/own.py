"""A user's own optimizer: a function in a Python file, which must follow the rules that the update modes need.

    def optimizer(rate):  # the learning rate of the step, a float32 scalar
        return tf.train.RMSPropOptimizer(rate)

Where a mode has several copies of the variables, each gets an optimizer of its own from another call.
"""
import contextlib
import functools
import os
import traceback
from collections.abc import Callable

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10 import own
from cifar10.errors import UsageError

_FLAG = 'optimizer'
_STEPS = 4  # of a rehearsal
_RATE = 0.1
_KIND = 'return a tf.compat.v1.train.Optimizer, such as tf.compat.v1.train.RMSPropOptimizer(rate)'
_SHAPES = dict(filters=[3, 3, 2, 4], weights=[4, 3], biases=[3])  # of the variables of a rehearsal


def optimizer(name: str) -> Callable[[tf.Tensor], tf.train.Optimizer]:
    """Imports the function that 'FILE.py:FUNCTION' names; returns a function (learning rate) -> optimizer."""
    return functools.partial(_make, name, own.function(_FLAG, name))


def check(name: str, averages_within: bool) -> None:
    """Raises a UsageError if an optimizer breaks a rule. A few steps are taken on variables that are thrown away.

    Args:
      name: 'FILE.py:FUNCTION'.
      averages_within: whether the update mode averages gradients within `apply_gradients`.
    """
    make = optimizer(name)
    with own.usage_errors(_FLAG, name):
        violation = _rehearse(make, averages_within)
    if violation:
        raise UsageError(f'--{_FLAG}={name}: {violation}')


def _make(name, function, rate):
    with own.usage_errors(_FLAG, name), _without_keras(name):
        own.check_arguments(function, 'rate')
        made = function(rate)
    if not isinstance(made, tf.train.Optimizer):
        kind = type(made)
        raise UsageError(f'--{_FLAG}={name}: it returns {kind.__module__}.{kind.__name__}; {_KIND}')
    create_slots = made._create_slots  # the hook that derived classes override

    def create_slots_outside(var_list):
        # Otherwise names such as Adam's beta1_power contain the name scope in which an update mode applies gradients.
        with tf.name_scope(None):
            create_slots(var_list)
    made._create_slots = create_slots_outside
    apply_gradients = made.apply_gradients

    def apply_in_file(*arguments, **options):
        with own.code_of(name), own.usage_errors(_FLAG, name):
            return apply_gradients(*arguments, **options)
    made.apply_gradients = apply_in_file
    return made


@contextlib.contextmanager
def _without_keras(name):
    """Context in which an optimizer of Keras says that it cannot be used, rather than what it makes of a tensor."""
    try:
        yield
    except ValueError as error:
        if any(f'{os.sep}keras{os.sep}' in frame.filename for frame in traceback.extract_tb(error.__traceback__)):
            raise UsageError(f'--{_FLAG}={name}: an optimizer of Keras cannot be used; {_KIND}') from error
        raise


def _rehearse(make, averages_within):
    """Returns a phrase that names the first rule that an optimizer breaks and the remedy, or None."""
    names = []
    for scope in ('update', 'tower_0/apply'):
        with own.graph(), tf.device('/cpu:0'):
            violation, copies = _build(make, scope, averages_within)
            if violation:
                return violation
            names.append({variable.op.name for variable in tf.global_variables()})
            if scope == 'update':
                violation = _step_rule(copies)
                if violation:
                    return violation
    for name in sorted(names[0] - names[1]):
        return (f'the variable {name} is named after the name scope in which gradients are applied, which update modes '
                'choose differently; make it within tf.name_scope(None)')
    return None


def _build(make, scope, averages_within):
    """Builds two copies of some variables, as update modes have them, each with an optimizer.

    Args:
      make: function (learning rate) -> optimizer.
      scope: the name scope in which gradients are applied.
      averages_within: as `check` takes it.

    Returns:
      (a phrase as `_rehearse` returns it, a list of the two (variables, gradients, train operation)).
    """
    global_step = tf.train.get_or_create_global_step()
    rate = tf.placeholder_with_default(np.float32(_RATE), [], 'rate')
    copies, optimizers = [], []
    for prefix in ('', 'copy'):
        with tf.variable_scope(prefix):
            variables = [tf.get_variable(name, shape, initializer=tf.constant_initializer(0.5))
                         for name, shape in _SHAPES.items()]
            unused = tf.get_variable('unused', [2], initializer=tf.zeros_initializer())
        copies.append((variables, [tf.placeholder(tf.float32, shape) for shape in _SHAPES.values()]))
    known = {variable.op.name for variable in tf.global_variables()}
    for number, (variables, gradients) in enumerate(copies):
        before = set(tf.get_default_graph().get_operations())
        made = make(rate)
        optimizers.append(made)
        violation = _class_rule(made, averages_within) or _constructor_rule(known)
        if violation:
            return violation, []
        pairs = [*zip(gradients, variables), (None, unused)]
        with tf.variable_scope('copy' if number else '', auxiliary_name_scope=False), tf.name_scope(scope):
            applied = made.apply_gradients(pairs, None if number else global_step)
        violation = _variable_rule(known) or _global_step_rule(global_step, before) or _repetition_rule(made, pairs)
        if violation:
            return violation, []
        known |= {variable.op.name for variable in tf.global_variables()}
        copies[number] = variables, gradients, applied
    if optimizers[0] is optimizers[1]:
        return 'it returns the same optimizer twice; make a new one in each call', []
    return None, copies


# Each function below checks some rules. It returns a phrase as `_rehearse` does.

def _class_rule(made, averages_within):
    """Gradients are changed only where their mean is known, and resource variables can be updated."""
    base = tf.train.Optimizer
    kind = type(made)
    applies = kind.apply_gradients is not base.apply_gradients
    if kind.compute_gradients is not base.compute_gradients:
        return (f'{kind.__name__} overrides compute_gradients, which each tower calls for its own batch; leave it '
                'out, and change gradients in apply_gradients, which gets their mean')
    if kind._resource_apply_dense is base._resource_apply_dense and not applies:
        return (f'{kind.__name__} has no _resource_apply_dense(gradient, variable), with which resource variables are '
                'updated; write one in place of _apply_dense')
    if applies and averages_within:
        return (f'{kind.__name__} overrides apply_gradients, which gets no mean gradients in this update mode; use '
                '--variable_update=replicated, which takes the same steps')
    return None


def _constructor_rule(known):
    """Optimizers make no variables before they have gradients, because copies would not begin with equal ones."""
    for variable in tf.global_variables() + tf.local_variables():
        if variable.op.name not in known:
            return (f'the variable {variable.op.name} is made together with the optimizer; make it in _create_slots, '
                    'which is called when gradients are applied')
    return None


def _variable_rule(known):
    """An optimizer's variables are saved in checkpoints, are not trained, and can be averaged."""
    for variable in tf.local_variables():
        return (f'the variable {variable.op.name} is a local variable, which checkpoints do not contain; do not add it '
                'to the collection tf.GraphKeys.LOCAL_VARIABLES')
    saved = {variable.op.name for variable in tf.global_variables()}
    for operation in tf.get_default_graph().get_operations():
        if operation.type in ('VariableV2', 'VarHandleOp') and operation.name not in saved:
            return (f'the variable {operation.name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so it is '
                    'neither initialised nor saved; leave out collections=')
    for variable in tf.global_variables():
        if variable.op.type != 'VarHandleOp':
            return f'the variable {variable.op.name} is not a resource variable; leave out use_resource=False'
        if variable.op.name not in known and variable.trainable:
            return f'the variable {variable.op.name} would be trained; make it with trainable=False'
        dtype = variable.dtype.base_dtype
        if not (dtype.is_integer or dtype in (tf.float32, tf.float16, tf.bfloat16, tf.bool)):
            return (f'the variable {variable.op.name} is {dtype.name}, and copies of it cannot be averaged; make it '
                    'float32')
    return None


def _global_step_rule(global_step, before):
    """Nothing depends on global_step, which changes while some copies of the variables are still updated."""
    for operation in global_step.handle.consumers():
        if operation not in before and operation.type != 'AssignAddVariableOp':
            return (f'its operation {operation.name} uses global_step, which changes while copies of the variables are '
                    'updated; use the learning rate, or count steps in a variable that _create_slots makes')
    return None


def _repetition_rule(made, pairs):
    """Gradients are applied again to the same variables without new state, as in `async`, once for each tower."""
    remedy = 'make its variables in _create_slots, with _zeros_slot and _create_non_slot_variable'
    before = {variable.op.name for variable in tf.global_variables()}
    try:
        with tf.name_scope('again'):
            made.apply_gradients(pairs)
    except UsageError as error:
        return f"its apply_gradients can be called only once ({' '.join(str(error.__cause__).split())}); {remedy}"
    for variable in tf.global_variables():
        if variable.op.name not in before:
            return f'each call of its apply_gradients makes another variable, such as {variable.op.name}; {remedy}'
    return None


def _step_rule(copies):
    """Steps change what they are given and nothing else, and depend on nothing but gradients, rate and variables."""
    random = np.random.default_rng(0)
    gradients = [[random.normal(size=shape) for shape in _SHAPES.values()] for _ in range(_STEPS)]
    feeds = [[dict(zip(placeholders, each)) for each in gradients] for _, placeholders, _ in copies]
    trained = [variables for variables, _, _ in copies]
    state = tf.global_variables()
    loads = [(variable, tf.placeholder(variable.dtype.base_dtype, variable.shape)) for variable in state]
    load = tf.group([variable.assign(value, read_value=False) for variable, value in loads])
    operations = [applied for _, _, applied in copies]
    config = tf.ConfigProto(device_count={'GPU': 0})  # the first session with GPUs sets their memory options for all

    def take(session, copy, steps, rate=_RATE):
        for step in steps:
            session.run(operations[copy], {**feeds[copy][step], 'rate:0': rate})
        return session.run(state)

    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        begin = session.run(trained[1])
        half = take(session, 0, range(_STEPS // 2))
        whole = take(session, 0, range(_STEPS // 2, _STEPS))
        expected = session.run(trained[0])
        others = session.run([*trained[1], tf.train.get_global_step()])
        take(session, 1, range(_STEPS))
        again = session.run([*trained[1], tf.train.get_global_step()])
    with tf.Session(config=config) as session:
        restored = {value: array for (_, value), array in zip(loads, half)}
        session.run(load, restored)
        resumed = take(session, 0, range(_STEPS // 2, _STEPS))
        session.run(load, restored)
        at_another_rate = take(session, 0, range(_STEPS // 2, _STEPS), _RATE / 2)
    if others[-1] != _STEPS or again[-1] != _STEPS:
        return ('its apply_gradients does not increment global_step by 1 where it is given one; hand it on to '
                'super().apply_gradients')
    if not _equal(others[:-1], begin):
        return ('it changes variables whose gradients it was not given; change only those in the pairs of '
                'apply_gradients, not tf.trainable_variables()')
    if not _equal(again[:-1], expected):
        return ('two optimizers that it returns take different steps; keep nothing between calls, and use no random '
                'operations without a fixed seed')
    if not _equal(resumed, whole):
        return ('after a checkpoint it takes other steps than without: keep its state in slots or variables, and make '
                'random operations stateless')
    if _equal(expected, begin):
        return 'its steps change no variable; apply the gradients, times the rate that the function is given'
    if _equal(at_another_rate, whole):
        return ('its steps are the same at another learning rate, so --learning_rate and --schedule would do nothing; '
                'use the rate that the function is given')
    return None


def _equal(some, others):
    """Returns whether lists of arrays are equal to the bit."""
    return all(one.tobytes() == other.tobytes() for one, other in zip(some, others))
