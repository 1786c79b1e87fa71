"""Builds a user's own network before a run, for training and for evaluation, and checks the rules of towers.

The network is only a function here: no towers, update modes or images are involved. Only the graph for evaluation is
run, on random numbers.
"""
import collections
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.cpu_session import cpu_session
from cifar10.base.graphs import seeded_graph
from cifar10.model.network_draws import at_position
from cifar10.model.parts import divided
from cifar10.model.statistics import MOVING_STATISTICS, MovingStatistic

_SCOPE = 'rehearsed_tower'
_ADD_MOVING_STATISTIC = 'cifar10.model.add_moving_statistic(variable, value, keep)'
_FOR_STATISTICS = f'use cifar10.model.batch_normalisation(x, training), or {_ADD_MOVING_STATISTIC}'
_FOR_REGULARIZER = ('in place of regularizer= write tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(1e-4, '
                    "tf.nn.l2_loss(weights), name='weight_loss')) after tf.get_variable")
# Types of operations that change a variable.
_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')
# Types of operations whose random numbers depend on what the process has drawn before.
_DRAWS = re.compile(
    r'Random(Crop|Gamma|Poisson|Shuffle|StandardNormal|Uniform|UniformInt)(V2)?|(Parameterized)?TruncatedNormal'
    r'|Stateful(Random|Standard|Truncated|Uniform)\w*|Rng\w*Skip|Multinomial|\w*CandidateSampler'
    r'|SampleDistortedBoundingBox(V2)?')

# Types of operations that wait for others, or for initialisers, which no tower runs.
_SOURCES = re.compile(r'\w*(Queue|Reader|HashTable|LookupTable|Iterator|Unstage|Barrier)\w*')
_NEVER_NEGATIVE = ('Relu', 'Relu6', 'Softplus')  # types of operations
_SCALES = (1, 1, 100)  # of the random variables with which outputs are looked at


class Findings(NamedTuple):
    """The findings of a rehearsal.

    Attributes:
      violation: a phrase that names the first broken rule and its remedy, or None.
      warnings: phrases about things that are allowed, but probably a mistake.
    """
    violation: str | None
    warnings: Sequence[str] = ()


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType, seed: int,
             execute_again: Callable = lambda: None) -> Findings:
    """Builds a network in a training graph and in an evaluation graph and checks the rules.

    Args:
      inference: function (images, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation uses the last.
      dtype: the type of training images.
      seed: the seed of the training graph.
      execute_again: makes `inference` what it is in another process.
    """
    side = sizes[0] if len(sizes) == 1 else None
    with seeded_graph(seed):
        tf.train.get_or_create_global_step()
        with divided() as division:
            images, scope, logits = _build_tower(inference, 0, dtype, [batch_size, side, side, 3], seed)
        violation = (_variable_rule() or _loss_rule() or _collection_rule() or _scope_rule(scope)
                     or _source_rule() or _placeholder_rule(images) or _gradient_rule(logits) or _write_rule())
        if violation:
            return Findings(violation)
        drawn = _stateful_draws()
        warnings = _summary_warnings()
        _, second_scope, _ = _build_tower(inference, 1, dtype, [batch_size, side, side, 3], seed)
        violation = _tower_rule(scope, second_scope)
        if violation:
            return Findings(violation)
        training_variables = _variables()
    with seeded_graph():
        images, logits, parts = _build_evaluation(inference, sizes[-1])
        violation = (_variable_rule() or _source_rule() or _placeholder_rule(images) or _write_rule()
                     or _evaluation_rule(training_variables, _variables()) or _part_rule(division.parts, parts))
        if violation:
            return Findings(violation)
        in_evaluation, constants = _stateful_draws(), _constants()
        violation, outputs = (None, []) if in_evaluation else _output_rule(images, logits)
    with contextlib.suppress(Exception), seeded_graph():  # what cannot be done twice is not compared
        execute_again()
        _build_evaluation(inference, sizes[-1])
        violation = violation or _repetition_rule(constants, _constants())
    return Findings(violation, warnings + outputs + _draw_warnings(drawn, in_evaluation))


def _build_evaluation(inference, size):
    """Builds a network as evaluation does; returns (images, logits, number of parts)."""
    images = tf.placeholder(tf.float32, [None, size, size, 3])
    with tf.name_scope(_SCOPE), divided() as division:
        return images, inference(images, False), division.parts


def _build_tower(inference, k, dtype, shape, seed):
    """Builds a network as tower `k` does: the second tower reuses the variables of the first.

    Args:
      inference: as in `rehearse`.
      k: 0 or 1.
      dtype: the type of the images.
      shape: the shape of the images.
      seed: the seed of the run.

    Returns:
      (images, name scope of the tower, logits).
    """
    images = tf.placeholder(dtype, shape)
    first = tf.constant(k * shape[0], tf.int64)
    name = f'{_SCOPE}_{k}' if k else _SCOPE
    with tf.name_scope(name) as scope, tf.variable_scope(tf.get_variable_scope(), reuse=k > 0,
                                                         auxiliary_name_scope=False), at_position(seed, first):
        return images, scope, inference(images, True)


def _variables():
    """Returns for each variable, by its name, what evaluation and training must agree on, as text."""
    descriptions = {}
    for variable in tf.global_variables():
        trainable = 'trainable' if variable.trainable else 'not trainable'
        dtype = variable.dtype.base_dtype.name
        descriptions[variable.op.name] = f'{variable.shape.as_list()}, {dtype}, {trainable}'
    return descriptions


# Each function below checks one rule. It returns a phrase that says how the network breaks the rule, with the
# remedy, or None if it follows the rule.

def _variable_rule():
    """Variables come from `tf.get_variable`, are saved in checkpoints, and are float32 if they are trained."""
    for variable in tf.global_variables() + tf.local_variables() + tf.trainable_variables():
        name = variable.op.name
        # A tower's scope is a name scope, which `tf.get_variable` ignores and all other variables' names have.
        if name.startswith(_SCOPE + '/'):
            if name.endswith('/ExponentialMovingAverage'):
                return (f'tf.train.ExponentialMovingAverage makes {_relative(name)}, and each tower would have its '
                        f'own; {_FOR_STATISTICS}')
            return (f'the variable {_relative(name)} was not made with tf.get_variable, so each tower would have its '
                    'own; use tf.get_variable (for layers of Keras, docs/keras-to-tower.md says how)')
        if re.search(r'/part_\d+$', name):
            return f'the variable {name} is part of a partitioned variable; leave out the partitioner'
    if violation := saving_rule():
        return violation
    for variable in tf.trainable_variables():
        if variable.dtype.base_dtype != tf.float32:
            return (f'the variable {variable.op.name} is not float32, as all trainable variables must be; make '
                    'it float32 and cast its value, or make it with trainable=False')
    return None


def saving_rule() -> str | None:
    """Variables of the current graph are resource variables that checkpoints hold; for networks and optimizers."""
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
    return None


def _loss_rule():
    """Losses are float32 scalars."""
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            return f'it adds {describe(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars'
    return None


def _collection_rule():
    """Only collections that towers understand are used, and their entries are valid."""
    remedies = {
        tf.GraphKeys.REGULARIZATION_LOSSES: _FOR_REGULARIZER,
        tf.GraphKeys.UPDATE_OPS: _FOR_STATISTICS}
    for collection, remedy in remedies.items():
        if tf.get_collection(collection):
            return f'it adds to the collection {collection}, which towers do not share; {remedy}'
    for layer in tf.get_collection(tf.GraphKeys.ACTIVATIONS):
        if not isinstance(layer, tf.Tensor) or not layer.dtype.is_floating or not layer.shape.rank:
            return (f'it adds {describe(layer)} to the collection tf.GraphKeys.ACTIVATIONS; add float tensors '
                    '[images, ...]')
    for statistic in tf.get_collection(MOVING_STATISTICS):
        if not _is_valid_statistic(statistic):
            return (f'it adds an invalid entry to the collection {MOVING_STATISTICS}; use '
                    f'{_ADD_MOVING_STATISTIC}, with a float32 variable that is not trainable, a float32 value of its '
                    'shape, and a fraction to keep from 0 to 1')
    return None


def _is_valid_statistic(entry):
    if not isinstance(entry, MovingStatistic) or entry.variable.trainable:
        return False
    types = {entry.value.dtype, entry.variable.dtype.base_dtype}
    return types == {tf.float32} and entry.value.shape == entry.variable.shape and 0 <= entry.keep <= 1


def _scope_rule(scope):
    """Additions to a collection must be made in the name scope of the tower, which finds them by their names."""
    for collection in (tf.GraphKeys.LOSSES, tf.GraphKeys.ACTIVATIONS, MOVING_STATISTICS):
        for entry in tf.get_collection(collection):
            if not entry.name.startswith(scope):
                return (f'it adds {entry.name.split(":")[0]}, made in an absolute name scope, to the collection '
                        f'{collection}, where its tower does not find it; leave out tf.name_scope(None) and '
                        'scopes that end with /')
    return None


def _tower_rule(scope, second_scope):
    """Every tower adds the same losses and moving statistics."""
    for collection in (tf.GraphKeys.LOSSES, MOVING_STATISTICS):
        first = _names_in(collection, scope)
        second = _names_in(collection, second_scope)
        for name in (first - second) + (second - first):
            return (f'it adds {name} to the collection {collection} in one tower and not in the other; add the '
                    'same each time it is called, whether variables are reused or not')
    return None


def _names_in(collection, scope):
    """Counts the names, relative to a name scope, of the entries of a collection in that scope."""
    return collections.Counter(entry.name.removeprefix(scope).split(':')[0]
                               for entry in tf.get_collection(collection, scope))


def _write_rule():
    """No operation changes a variable, apart from its initialiser."""
    for operation in _operations():
        if _WRITES.fullmatch(operation.op):
            return (f'its operation {_relative(operation.name)} changes a variable, and each update mode would run it '
                    f'a different number of times; leave it out, or for moving statistics {_FOR_STATISTICS}')
    return None


def _placeholder_rule(images):
    """There is no placeholder but the images."""
    for operation in tf.get_default_graph().get_operations():
        if operation.type in ('Placeholder', 'PlaceholderWithDefault') and operation != images.op:
            return (f'it makes the placeholder {_relative(operation.name)}, which nothing feeds; make it a constant, '
                    'or use the argument `training`')
    return None


def _source_rule():
    """Nothing waits for what only a session of the network's own would start: queues, readers, tables, iterators."""
    for operation in _operations(initialisers=True):
        if _SOURCES.fullmatch(operation.op):
            return (f'its operation {_relative(operation.name)} is a {operation.op}, which nothing starts or fills'
                    f'{own.place_of(operation.name)}; use the images that the function is given, and in place of a '
                    'table tf.gather from a constant')
    return None


def _repetition_rule(constants, again):
    """Each process builds the same network. The arguments are as `_constants` returns them."""
    for value in [*(constants - again), *(again - constants)]:
        return (f'its constant {_relative(value[0])} is another one each time that the file is run'
                f'{own.place_of(value[0])}; give random numbers a fixed seed, as in np.random.default_rng(0)')
    return None


def _output_rule(images, logits):
    """Logits depend on the images. Returns (a phrase or None, warnings of outputs that cannot be logits)."""
    variables, random = tf.trainable_variables(), np.random.default_rng(0)
    outputs = []
    try:
        with cpu_session(tf.get_default_graph()) as session:
            session.run(tf.global_variables_initializer())
            for scale in _SCALES:
                for variable in variables:
                    value = scale * random.standard_normal(variable.shape.as_list(), np.float32)
                    session.run(variable.initializer, {variable.initializer.inputs[1]: value})
                fed = random.standard_normal([2, *images.shape.as_list()[1:]], np.float32)
                outputs.append(session.run(logits, {images: fed}))
    except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
        return None, []
    values = np.concatenate(outputs)
    values = values[np.isfinite(values).all(1)]
    least, most = values.min(initial=np.inf), values.max(initial=-np.inf)
    if logits.op.type in _NEVER_NEGATIVE or -1 <= least < most <= 1:
        kind = 'add up to 1' if np.allclose(values.sum(1), 1, atol=1e-3) else 'are bounded'
        return None, [f'the outputs of an image {kind}, whatever the variables are{own.place_of(logits.op.name)}; '
                      'return logits, as they are before a softmax, sigmoid or ReLU']
    if all((output[0] == output[1]).all() and output.any() for output in outputs):
        return f'its logits do not depend on the images{own.place_of(logits.op.name)}; use the argument `images`', []
    return None, []


def _gradient_rule(logits):
    """The logits depend on a trainable variable, and all losses can be differentiated."""
    variables = tf.trainable_variables()
    if all(gradient is None for gradient in tf.gradients(logits, variables)):
        return ('its logits depend on no trainable variable; make variables with tf.get_variable, and do not stop '
                'their gradients')
    # This raises a LookupError if an operation has no gradient.
    tf.gradients(tf.get_collection(tf.GraphKeys.LOSSES) + [logits], variables)
    return None


def _evaluation_rule(training_variables, evaluation_variables):
    """Evaluation has no other variables than training. The arguments are as `_variables` returns them."""
    for name, description in evaluation_variables.items():
        if name not in training_variables:
            return (f'it makes the variable {name} only where `training` is false, so it is never trained; make '
                    'it in both cases')
        if description != training_variables[name]:
            return (f'the variable {name} is {training_variables[name]} in training, but {description} in '
                    'evaluation; make it the same in both')
    return None


def _part_rule(in_training, in_evaluation):
    """The network has as many parts in evaluation as in training. The arguments are their numbers."""
    if in_training != in_evaluation:
        return (f'its number of parts is {in_training} in training, but {in_evaluation} in evaluation; call next_part '
                'as often in both')
    return None


# Warnings: allowed, but probably a mistake.

def _stateful_draws():
    """Returns the names of the random operations that are not stateless."""
    return [_relative(operation.name) for operation in _operations() if _DRAWS.fullmatch(operation.op)]


def _draw_warnings(in_training, in_evaluation):
    """Returns what there is to say of random operations that are not stateless. The arguments are their names."""
    if in_evaluation:
        return [f'its operation {in_evaluation[0]} draws random numbers in evaluation too, so predictions change from '
                'one time to the next; use it only where `training` is true']
    if in_training:
        return [f'its operation {in_training[0]} draws other random numbers after a resume, so the run does not end '
                'with the same bits; use cifar10.model.dropout(x, rate, training), or uniform_like(x)']
    return []


def _summary_warnings():
    """Returns what there is to say of summaries, which only the training program writes."""
    if summaries := tf.get_collection(tf.GraphKeys.SUMMARIES):
        return [f'its summary {_relative(summaries[0].name.split(":")[0])} is not written; add the tensor to '
                'tf.GraphKeys.ACTIVATIONS to see its histogram']
    return []


def _constants():
    """Counts the (name, value) pairs of the graph's constants."""
    return collections.Counter((node.name, node.attr['value'].SerializeToString())
                               for node in _operations() if node.op == 'Const')


def _operations(initialisers=False):
    """Returns the NodeDefs of all operations of the graph and of its functions, with or without initialisers."""
    definition = tf.get_default_graph().as_graph_def()
    initialisers = () if initialisers else _with_inputs([variable.initializer for variable in tf.global_variables()])
    operations = [node for node in definition.node if node.name not in initialisers]
    for function in definition.library.function:  # branches of a tf.cond, the body of a tf.while_loop
        operations += function.node_def
    return operations


def _with_inputs(operations):
    """Returns the names of some operations and of all that they need."""
    found, pending = set(), list(operations)
    while pending:
        operation = pending.pop()
        if operation.name not in found:
            found.add(operation.name)
            pending += [*(tensor.op for tensor in operation.inputs), *operation.control_inputs]
    return found


def _relative(name):
    """Returns the name that an operation or a variable has within its tower."""
    return name.removeprefix(_SCOPE + '/')


def describe(value: Any) -> str:
    """Returns a phrase for what a network returned or collected, such as 'a tensor float32 [8, 10]'."""
    if isinstance(value, tf.Tensor):
        shape = 'of unknown shape' if value.shape.rank is None else value.shape.as_list()
        return f'a tensor {value.dtype.name} {shape}'
    if isinstance(value, (int, float, str)):
        return f'{type(value).__name__} {value!r}'
    return type(value).__name__
