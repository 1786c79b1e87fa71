"""Builds a user's own network before a run, for training and for evaluation, and checks the rules of towers."""
import collections
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.activity import moved
from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, seeded_graph, with_inputs
from cifar10.base.own import BrokenRule
from cifar10.base.own_files import place_of
from cifar10.model import rehearsed_steps
from cifar10.model.parts import divided
from cifar10.model.rehearsed_steps import FED, SCOPE, relative
from cifar10.parallel import session_config

_FOR_STATISTICS = ('use cifar10.model.batch_normalisation(x, training), or '
                   'cifar10.model.add_moving_statistic(variable, value, keep)')
_FOR_REGULARIZER = ('in place of regularizer= write tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(1e-4, '
                    "tf.nn.l2_loss(weights), name='weight_loss')) after tf.get_variable")
# Types of operations that change a variable.
_WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')
# Types of operations whose random numbers depend on what the process has drawn before.
_DRAWS = re.compile(
    r'Random(Crop|Gamma|Poisson|Shuffle|StandardNormal|Uniform|UniformInt)(V2)?|(Parameterized)?TruncatedNormal'
    r'|Stateful(Random|Standard|Truncated|Uniform)\w*|Rng\w*Skip|Multinomial|\w*CandidateSampler'
    r'|SampleDistortedBoundingBox(V2)?')
_STATELESS = re.compile(r'Stateless(Random|Truncated|Parameterized)\w*')  # these draw the same numbers again
# These add in the order of arrival, unless operations must be deterministic; two trials may miss it.
_BY_ARRIVAL = re.compile(r'CropAndResizeGrad\w+')
# Types of operations that wait for others, or for initialisers, which no tower runs.
_SOURCES = re.compile(r'\w*(Queue|Reader|HashTable|LookupTable|Iterator|Unstage|Barrier)\w*')
_NEVER_NEGATIVE = ('Relu', 'Relu6', 'Softplus')  # types of operations
_SCALES = (1, 1, 100)  # of the random variables with which outputs are looked at
_ROUNDING = 1e-3  # of logits, relative to the largest


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType, seed: int,
             has_copies: bool = False, execute_again: Callable = lambda: None) -> list[str]:
    """Builds a network in two towers for training, and for evaluation, and checks the rules.

    Args:
      inference: function (images, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation uses the last.
      dtype: the type of training images.
      seed: the seed of the run.
      has_copies: whether towers have copies of the variables, as `UpdateMode.has_copies` says.
      execute_again: executes the user's file again, so that `inference` is as in another process.

    Returns:
      Phrases about things that are allowed, but probably a mistake.

    Raises:
      BrokenRule: the network breaks a rule.
    """
    def build_for_evaluation():
        images = tf.placeholder(tf.float32, [None, sizes[-1], sizes[-1], 3], FED)
        with tf.name_scope(SCOPE):
            return images, inference(images, False)

    warnings, drawn, draws = [], [], []

    def check(scope, logits):
        drawn[:], draws[:] = _of_types(_DRAWS), _of_types(_STATELESS)
        _check_variables()
        _check_collections(scope)
        _check_operations()
        _check_gradients(logits)
        warnings[:] = [*_unwritten_summaries(), *_unread_collections(logits)]

    batch_size = rehearsed_steps.batch_size(batch_size, sizes[0], dtype)
    for copies in sorted({False, has_copies}):  # where there are more towers than devices, some share a copy
        with seeded_graph(seed):
            tf.train.get_or_create_global_step()
            towers = rehearsed_steps.build(inference, 2, batch_size, sizes[0] if len(sizes) == 1 else None, dtype, seed,
                                           copies, check)
            rehearsed_steps.refuse_another_network(*towers)
            variables = _variables()
            if (unsteady := _of_types(_BY_ARRIVAL)) and not session_config.is_deterministic():
                warnings.append(f'its operation {unsteady[0]} has other bits each time, so a resumed run does not end '
                                'with the same bits; use --deterministic')
            elif not drawn and copies == has_copies:
                warnings += rehearsed_steps.compare(inference, towers, dtype, sizes[0], seed, bool(draws))
    with seeded_graph(seed), divided() as division:
        images, logits = build_for_evaluation()
        _check_variables()
        _check_operations()
        _check_evaluation(variables, _variables())
        if division.parts != towers[0].parts:
            raise BrokenRule(f'its number of parts is {towers[0].parts} in training, but {division.parts} in '
                             'evaluation; call next_part as often in both')
        if drawn_in_evaluation := _of_types(_DRAWS):
            warnings.append(f'its operation {drawn_in_evaluation[0]} draws random numbers in evaluation too, so '
                            'predictions change from one time to the next; use it only where `training` is true')
        else:
            warnings += _check_outputs(images, logits)
    if drawn and not drawn_in_evaluation:
        warnings.append(f'its operation {drawn[0]} draws other random numbers after a resume, so the run does not end '
                        'with the same bits; use cifar10.model.dropout(x, rate, training), or uniform_like(x)')
    def build_for_training():
        rehearsed_steps.build(inference, 1, batch_size, sizes[0] if len(sizes) == 1 else None, dtype, seed)
    _refuse_other_constants([build_for_evaluation, build_for_training], seed, execute_again)
    return warnings


def _refuse_other_constants(builds, seed, execute_again):
    """Raises a BrokenRule if a constant or an initial value is another one where the file is executed again.

    The generators of Python and NumPy are seeded while the user's code runs, so that initial values repeat. But in
    evaluation the order of their numbers need not be that of training, so nothing else may depend on them.
    """
    def found():
        constants = []
        for build in builds:
            with seeded_graph(seed):
                build()
                constants.append((_constants(), _initial_values()))
        return constants

    before = found()
    for context, kinds in ((own.unseeded(), 1), (contextlib.nullcontext(), 2)):
        after = before
        with context, contextlib.suppress(Exception):  # a file that cannot be executed twice is not compared
            with seeded_graph(seed):
                execute_again()
            after = found()
        for one, other in zip(before, after):
            for was, now in zip(one[:kinds], other):
                for place, _ in [*(was - now), *(now - was)]:
                    raise BrokenRule(f'its constant {place} is another one each time that the file is run; give random '
                                     'numbers a fixed seed, as in np.random.default_rng(0)')


def _variables():
    """Returns for each variable, by its name, what evaluation and training must agree on, as text."""
    descriptions = {}
    for variable in tf.global_variables():
        trainable = 'trainable' if variable.trainable else 'not trainable'
        dtype = variable.dtype.base_dtype.name
        descriptions[variable.op.name] = f'{variable.shape.as_list()}, {dtype}, {trainable}'
    return descriptions


# Each function below raises a BrokenRule, which says how the network breaks a rule, with the remedy.

def _check_variables():
    """Variables come from `tf.get_variable`, are saved, float32 if they are trained, and begin without images."""
    for variable in tf.global_variables():
        if any(operation.name.startswith(FED) for operation in with_inputs([variable.initializer])):
            raise BrokenRule(f'the initial value of the variable {variable.op.name} depends on the images, which are '
                             'not there yet; begin with a constant')
        name = relative(variable.op.name)
        if name != variable.op.name:  # `tf.get_variable` ignores name scopes, such as that of a tower
            if name.endswith('/ExponentialMovingAverage'):
                raise BrokenRule(f'tf.train.ExponentialMovingAverage makes {name}, and each tower would have its own; '
                                 f'{_FOR_STATISTICS}')
            raise BrokenRule(f'the variable {name} was not made with tf.get_variable, so each tower would have its '
                             'own; use tf.get_variable (for layers of Keras, docs/keras-to-tower.md says how)')
        if re.search(r'/part_\d+$', name):
            raise BrokenRule(f'the variable {name} is part of a partitioned variable; leave out the partitioner')
        if variable.trainable and variable.dtype.base_dtype != tf.float32:
            raise BrokenRule(f'the variable {name} is not float32, as all trainable variables must be; make it float32 '
                             'and cast its value, or make it with trainable=False')
    check_saved()


def check_saved() -> None:
    """Variables of the current graph are resource variables that checkpoints hold; for networks and optimizers."""
    saved = {variable.op.name for variable in tf.global_variables()}
    for operation in tf.get_default_graph().get_operations():
        name = relative(operation.name)
        if operation.type in ('VariableV2', 'VarHandleOp') and operation.name not in saved:
            raise BrokenRule(f'the variable {name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so it is '
                             'neither initialised nor saved; leave out collections=')
        if operation.type == 'VariableV2':
            raise BrokenRule(f'the variable {name} is not a resource variable; leave out use_resource=False')


def _check_collections(scope):
    """Only collections that towers understand are used, with entries that the tower of a name scope can use."""
    for collection, remedy in ((tf.GraphKeys.REGULARIZATION_LOSSES, _FOR_REGULARIZER),
                               (tf.GraphKeys.UPDATE_OPS, _FOR_STATISTICS)):
        for entry in tf.get_collection(collection):
            raise BrokenRule(f'it adds to the collection {collection}, which towers do not share'
                             f'{place_of(entry.name.split(":")[0])}; {remedy}')
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            raise BrokenRule(f'it adds {describe(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars')
    for layer in tf.get_collection(tf.GraphKeys.ACTIVATIONS):
        if not isinstance(layer, tf.Tensor) or not layer.dtype.is_floating or not layer.shape.rank:
            raise BrokenRule(f'it adds {describe(layer)} to the collection tf.GraphKeys.ACTIVATIONS; add float tensors '
                             '[images, ...]')
    for collection in (tf.GraphKeys.LOSSES, tf.GraphKeys.ACTIVATIONS, MOVING_STATISTICS):
        for entry in tf.get_collection(collection):
            if not entry.name.startswith(scope):
                raise BrokenRule(f'it adds {entry.name.split(":")[0]}, made in an absolute name scope, to the '
                                 f'collection {collection}, where its tower does not find it; leave out '
                                 'tf.name_scope(None) and scopes that end with /')


def _unwritten_summaries():
    """Returns a warning if the network makes summaries."""
    return [f'its summary {relative(summary.op.name)} is not written; add the tensor to tf.GraphKeys.ACTIVATIONS to '
            'see its histogram' for summary in tf.get_collection(tf.GraphKeys.SUMMARIES)[:1]]


def _unread_collections(logits):
    """Returns warnings about collections of the network's own that look like losses and are none."""
    known = {MOVING_STATISTICS, *(value for value in vars(tf.GraphKeys).values() if isinstance(value, str))}
    losses = tf.get_collection(tf.GraphKeys.LOSSES)
    used = {operation.name for operation in with_inputs([logits.op, *[loss.op for loss in losses]])}
    warnings = []
    for key in set(tf.get_default_graph().get_all_collection_keys()) - known:
        # Scalars are losses; variables that are collected are often meant for one outside the function.
        unread = [entry for entry in tf.get_collection(key) if (
            entry.shape.rank == 0 and entry.op.name not in used if isinstance(entry, tf.Tensor)
            else not losses and any(entry is variable for variable in tf.trainable_variables()))]
        if unread:
            warnings.append(f'it adds to the collection {key}, which nothing reads{place_of(unread[0].op.name)}; add '
                            'losses to tf.GraphKeys.LOSSES')
    return warnings


def _check_operations():
    """Nothing waits for what no tower feeds or starts, and no operation but an initialiser changes a variable."""
    for operation in _operations(initialisers=True):
        name = relative(operation.name)
        if operation.op in ('Placeholder', 'PlaceholderWithDefault') and not operation.name.startswith(FED):
            raise BrokenRule(f'it makes the placeholder {name}, which nothing feeds; make it a constant, or use the '
                             'argument `training`')
        if _SOURCES.fullmatch(operation.op):
            raise BrokenRule(f'its operation {name} is a {operation.op}, which nothing starts or fills'
                             f'{place_of(operation.name)}; use the images that the function is given, and in place '
                             'of a table tf.gather from a constant')
    for operation in _operations():
        if _WRITES.fullmatch(operation.op):
            raise BrokenRule(f'its operation {relative(operation.name)} changes a variable, and each update mode '
                             'would run it a different number of times; leave it out, or for moving statistics '
                             f'{_FOR_STATISTICS}')


def _check_gradients(logits):
    """The logits depend on a trainable variable, and all losses can be differentiated."""
    variables = tf.trainable_variables()
    if all(gradient is None for gradient in tf.gradients(logits, variables)):
        raise BrokenRule('its logits depend on no trainable variable; make variables with tf.get_variable, and neither '
                         'stop their gradients nor freeze them all')
    # This raises a LookupError if an operation has no gradient.
    tf.gradients(tf.get_collection(tf.GraphKeys.LOSSES) + [logits], variables)


def _check_evaluation(in_training, in_evaluation):
    """Evaluation has no other variables than training. The arguments are as `_variables` returns them."""
    for name, description in in_evaluation.items():
        if name not in in_training:
            raise BrokenRule(f'it makes the variable {name} only where `training` is false, so it is never trained; '
                             'make it in both cases')
        if description != in_training[name]:
            raise BrokenRule(f'the variable {name} is {in_training[name]} in training, but {description} in '
                             'evaluation; make it the same in both')


def _check_outputs(images, logits):
    """Logits depend on the images. Returns warnings of outputs that cannot be logits."""
    variables, random = tf.trainable_variables(), np.random.default_rng(0)
    outputs, warnings = [], []
    try:
        with cpu_session(tf.get_default_graph()) as session:
            session.run(tf.global_variables_initializer())
            for scale in _SCALES:
                for variable in variables:
                    value = scale * random.standard_normal(variable.shape.as_list(), np.float32)
                    session.run(variable.initializer, {variable.initializer.inputs[1]: value})
                fed = random.standard_normal([2, *images.shape.as_list()[1:]], np.float32)
                outputs.append(session.run(logits, {images: fed}))
                alone = np.concatenate([session.run(logits, {images: fed[i:i + 1]}) for i in range(len(fed))])
                moved()
                if not warnings and np.abs(alone - outputs[-1]).max() > _ROUNDING * np.abs(outputs[-1]).max():
                    warnings.append('the logits of an image depend on the other images of its batch in evaluation too, '
                                    'so predictions change with the batch; use statistics of the batch only where '
                                    '`training` is true')
    except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
        if not outputs:
            return warnings
    values = np.concatenate(outputs)
    values = values[np.isfinite(values).all(1)]
    least, most = values.min(initial=np.inf), values.max(initial=-np.inf)
    if logits.op.type in _NEVER_NEGATIVE or -1 <= least < most <= 1:
        kind = 'add up to 1' if np.allclose(values.sum(1), 1, atol=1e-3) else 'are bounded'
        return [*warnings, f'the outputs of an image {kind}, whatever the variables are{place_of(logits.op.name)}; '
                'return logits, as they are before a softmax, sigmoid or ReLU']
    if all((output[0] == output[1]).all() and output.any() for output in outputs):
        raise BrokenRule(f'its logits do not depend on the images{place_of(logits.op.name)}; use the argument '
                         '`images`')
    return warnings


def _of_types(types):
    """Returns the names of the operations of such types."""
    return [relative(operation.name) for operation in _operations() if types.fullmatch(operation.op)]


def _constants():
    """Counts the (name and place, value) pairs of the graph's constants."""
    return collections.Counter((relative(node.name) + place_of(node.name), node.attr['value'].SerializeToString())
                               for node in _operations() if node.op == 'Const')


def _initial_values():
    """Counts the (name and place, constants and seeds) pairs of the operations that compute initial values."""
    definitions = [operation.node_def for operation in with_inputs(
        variable.initializer for variable in tf.global_variables())]
    return collections.Counter(
        (relative(node.name) + place_of(node.name), tuple(node.attr[name].SerializeToString() for name in (
            'value', 'seed', 'seed2') if name in node.attr)) for node in definitions)


def _operations(initialisers=False):
    """Returns the NodeDefs of all operations of the graph and of its functions, with or without initialisers."""
    definition = tf.get_default_graph().as_graph_def()
    left_out = with_inputs(() if initialisers else [variable.initializer for variable in tf.global_variables()])
    names = {operation.name for operation in left_out}
    operations = [node for node in definition.node if node.name not in names]
    for function in definition.library.function:  # branches of a tf.cond, the body of a tf.while_loop
        operations += function.node_def
    return operations


def describe(value: Any) -> str:
    """Returns a phrase for what a network returned or collected, such as 'a tensor float32 (8, 10)'."""
    return f'a tensor {value.dtype.name} {value.shape}' if isinstance(value, tf.Tensor) else type(value).__name__
