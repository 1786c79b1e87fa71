"""A user's own network: a function in a Python file, which must follow the rules that towers need.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

Each tower calls the function again, over the same variables. Before a run it is built in two towers and for evaluation;
what would train wrongly in silence is refused, or reported in a warning.
"""
import contextlib
import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own_code
from cifar10.base.console import Line
from cifar10.base.graphs import AVERAGE, MOVING_STATISTICS, cpu_session, seeded_graph, with_inputs
from cifar10.base.own_code import BrokenRule, check_size, place_of
from cifar10.model import NUM_CLASSES, Network, rehearsed_steps
from cifar10.model.layers import mended_gradients
from cifar10.model.network_draws import at_position
from cifar10.model.one_device import IN_VAIN, WRITES, OneDevice
from cifar10.model.rehearsed_steps import FED, SCOPE, Rehearsal, relative
from cifar10.parallel import session_config

_FLAG = 'network'
_FOR_STATISTICS = ('use cifar10.model.batch_normalisation(x, training), or '
                   'cifar10.model.add_moving_statistic(variable, value, keep)')
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
_NO_LOGITS = ('Softmax', 'Sigmoid', 'Tanh', 'Relu', 'Relu6', 'Softplus')  # types of operations
_ROUNDING = 1e-3  # of logits, relative to the largest


def network(name: str) -> Network:
    """Imports the network that 'FILE.py:FUNCTION' names."""
    function = own_code.function(_FLAG, name, 'images, num_classes, training')
    return Network(functools.partial(_inference, name, function))


def _inference(name: str, function: Callable, images: tf.Tensor, training: bool = False,
               num_classes: int = NUM_CLASSES) -> tf.Tensor:
    """Builds the user's network and checks what it returns; see `Network.inference`."""
    height, width = images.shape[1:3]
    fed = f'it is fed {height}x{width} images' if height else 'it is fed images of several sizes'
    with own_code.usage_errors(_FLAG, name, f'; {fed}: build it for this size, or change --image_size'):
        with tf.device('/cpu:0'):
            tf.train.get_or_create_global_step()  # which a network may ask for, in evaluation too
        call = OneDevice()
        with call.running(), mended_gradients():
            logits = function(images, num_classes, training)
        are_logits = isinstance(logits, tf.Tensor) and logits.dtype.is_floating and logits.shape.rank == 2 and (
            logits.shape[1] == num_classes) and logits.shape[:1].is_compatible_with(images.shape[:1])
        if not are_logits:
            if isinstance(logits, tf.Tensor) and logits.shape.rank == 2 and logits.shape[1] == num_classes:
                raise BrokenRule(f'it returns {logits.shape[0]} rows for {images.shape[0]} images'
                                 f'{place_of(logits.op.name)}, and {fed}; in a tf.reshape, write -1 or images.shape[0] '
                                 'for the number of images, and their size as it is here')
            raise BrokenRule(f'it returns {_phrase(logits)}; return logits, float [images, {num_classes}] ({fed}, '
                             f'{_phrase(images)})')
        call.collect(logits, training)
        return tf.cast(logits, tf.float32)


def check(name: str, *arguments) -> list[str]:
    """Raises a UsageError if the network breaks a rule; returns warnings. The arguments are as for `rehearse`."""
    with own_code.usage_errors(_FLAG, name):
        found = rehearse(*arguments, execute_again=functools.partial(own_code.execute_again, name.rpartition(':')[0]))
    return [Line('warning', f'--network={name}: {warning}') for warning in found]


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType, seed: int,
             has_copies: bool = False, execute_again: Callable = lambda: None) -> list[str]:
    """Builds a network in two towers for training, and for evaluation, and checks the rules.

    Args:
      inference: function (images, training) -> logits.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation uses the last.
      has_copies: whether towers have copies of the variables, as `UpdateMode.has_copies` says.
      execute_again: executes the user's file again, so that `inference` is as in another process.

    Returns:
      Phrases about things that are allowed, but probably a mistake.

    Raises:
      BrokenRule: the network breaks a rule.
    """
    rehearsal = Rehearsal(inference, rehearsed_steps.batch_size(batch_size, sizes[0], dtype), sizes, dtype, seed)
    variables, warnings = _rehearse_towers(rehearsal, has_copies)
    with _alone(rehearsal, training=False) as (images, logits):
        check_variables()
        check_operations(logits)
        _check_evaluation(variables, _variables())
        in_evaluation = _described(logits)
        warnings += _evaluation_warnings(images, logits)
    with _alone(rehearsal, training=True) as (_, logits):
        in_training = _described(logits)
    _refuse_other_values(rehearsal, {True: in_training, False: in_evaluation}, execute_again)
    return warnings


def _rehearse_towers(rehearsal, has_copies):
    """Builds two towers as the update mode will; returns (what `_variables` returns, warnings)."""
    warnings, drawn = [], {}

    def check_tower(scope, logits):
        check_variables()
        check_collections(scope)
        check_operations(logits)
        # Of the first tower: in the second, a random tensor that has begun a shared variable begins none.
        needed = with_inputs(_results(logits))
        drawn.update((types, _of_types(types, needed)) for types in (_DRAWS, _STATELESS))
        drawn['same'] = any(_STATELESS.fullmatch(operation.type) and not _depends_on_what_is_fed([operation])
                            for operation in needed)
        warnings[:] = _pinned() + _unread_collections(logits)

    for copies in sorted({False, has_copies}):  # where there are more towers than devices, some share a copy
        with seeded_graph(rehearsal.seed):
            tf.train.get_or_create_global_step()
            towers = rehearsed_steps.build(rehearsal, 2, copies, check_tower)
            rehearsed_steps.refuse_another_network(*towers)
            if copies == has_copies:
                return _variables(), warnings + _tower_warnings(rehearsal, towers, drawn)


def _tower_warnings(rehearsal, towers, drawn):
    """Returns warnings about what two towers of the current graph compute.

    `drawn` has the operations by which the first draws, and whether both draw the same numbers, for any images.
    """
    if (unsteady := _of_types(_BY_ARRIVAL)) and not session_config.is_deterministic():
        return [f'its operation {unsteady[0]} has other bits each time, so a resumed run does not end with the same '
                'bits; use --deterministic']
    warnings = []
    if drawn[_DRAWS]:
        warnings = [f'its operation {drawn[_DRAWS][0]} draws other random numbers after a resume, so the run does not '
                    'end with the same bits; use cifar10.model.dropout(x, rate, training), or uniform_like(x)']
    fed = {relative(tensor.op.name) for tensor in towers[0].draws}
    if not fed.issuperset(drawn[_DRAWS]):
        return warnings
    is_comparable = fed.issuperset(drawn[_STATELESS]) if towers[0].normalises else not drawn['same']
    return warnings + rehearsed_steps.compare(rehearsal, towers, is_comparable)


@contextlib.contextmanager
def _alone(rehearsal, training):
    """Context in a graph that has the network without towers; yields (the images, the logits)."""
    size = rehearsal.batch_size if training else 2
    side = rehearsal.static_side if training else rehearsal.sizes[-1]
    with seeded_graph(rehearsal.seed), tf.name_scope(SCOPE):  # an operation that has a variable's name changes that
        images = tf.placeholder(rehearsal.dtype if training else tf.float32, [size, side, side, 3], FED)
        position = tf.placeholder(tf.int64, [], FED)
        with at_position(rehearsal.seed, position) if training else contextlib.nullcontext():
            logits = rehearsal.inference(images, training)
        yield images, logits


def _refuse_other_values(rehearsal, before, execute_again):
    """Raises a BrokenRule if a constant or an initial value is another one where the file is executed again.

    The generators of Python and NumPy are seeded while the user's code runs, so that initial values repeat. But in
    evaluation the order of their numbers need not be that of training, so nothing else may depend on them. `before` has
    what `_described` returned, by whether the network was built for training.
    """
    with own_code.unseeded():
        others = _others(rehearsal, before, execute_again)
    changed = [name for name, is_initial in others if not is_initial]
    if others and not changed:  # initial values may be drawn, if they are the same with the same seed
        changed = [name for name, _ in _others(rehearsal, before, execute_again)]
    if changed:
        raise BrokenRule(f'its {changed[0]} is another one each time that the file is run; give random numbers a fixed '
                         'seed, as in np.random.default_rng(0)')


def _others(rehearsal, before, execute_again):
    """Executes the file again; returns (name and place, whether it is of an initial value) of what is another then."""
    try:
        with seeded_graph(rehearsal.seed):
            execute_again()
    except Exception:  # a file that cannot be executed twice is not compared
        return []
    found = []
    for training, was in before.items():
        with _alone(rehearsal, training) as (_, logits):
            for is_initial, (one, other) in enumerate(zip(was, _described(logits))):
                for kind, name in rehearsed_steps.only_in_one(one, other):
                    found.append((f'{kind} {relative(name)}{place_of(name)}', is_initial))
    return found


def _described(logits):
    """Describes the operations that compute the logits and losses of the current graph, and its initial values."""
    return [rehearsed_steps.described(operations) for operations in (
        _results(logits), [variable.initializer for variable in tf.global_variables()])]


def _results(logits):
    """Returns the operations of the logits, losses and moving statistics of the current graph."""
    statistics = [statistic.value for statistic in tf.get_collection(MOVING_STATISTICS)]
    return [tensor.op for tensor in [logits, *tf.get_collection(tf.GraphKeys.LOSSES), *statistics]]


def _variables():
    """Returns for each variable, by its name, what evaluation and training must agree on, as text."""
    descriptions, trained = {}, tf.trainable_variables()
    for variable in tf.global_variables():
        trainable = 'trainable' if any(variable is each for each in trained) else 'not trainable'
        dtype = variable.dtype.base_dtype.name
        descriptions[variable.op.name] = f'{variable.shape.as_list()}, {dtype}, {trainable}'
    return descriptions


# Each function below raises a BrokenRule, which says how the network breaks a rule, with the remedy.

def check_variables() -> None:
    """Variables come from `tf.get_variable`, are saved, float32 if they are trained, and begin without images."""
    averages = {variable.op.name + AVERAGE for variable in tf.trainable_variables()}
    for variable in tf.global_variables():
        if _depends_on_what_is_fed([variable.initializer]):
            raise BrokenRule(f'the initial value of the variable {variable.op.name} depends on the images, which do '
                             'not exist yet; use a constant')
        name = variable.op.name
        if name in averages:
            raise BrokenRule(f'it keeps a moving average of the variable {name.removesuffix(AVERAGE)}, and so does '
                             'training, under the same name; leave it out and use --moving_averages=true, or give '
                             'tf.train.ExponentialMovingAverage another name=')
        if variable.dtype.base_dtype == tf.string:
            raise BrokenRule(f'the variable {name} holds text, for which a checkpoint has no checksum; keep text in '
                             'variables of Python')
        if variable.trainable and variable.dtype.base_dtype != tf.float32:
            raise BrokenRule(f'the variable {name} is not float32, as all trainable variables must be; make it float32 '
                             'and cast its value, or make it with trainable=False')
    check_saved()


def check_saved() -> None:
    """Variables of the current graph are in the collection that checkpoints hold; for networks and optimizers."""
    saved = {variable.op.name for variable in tf.global_variables()}
    for operation in tf.get_default_graph().get_operations():
        if operation.type in ('VariableV2', 'VarHandleOp') and operation.name not in saved:
            raise BrokenRule(f'the variable {relative(operation.name)} is not in the collection '
                             'tf.GraphKeys.GLOBAL_VARIABLES, so it is neither initialised nor saved; leave out '
                             'collections=')


def check_collections(scope: str) -> None:
    """Only collections that towers understand are used, with entries that the tower of a name scope can use."""
    for loss in tf.get_collection(tf.GraphKeys.LOSSES):
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            raise BrokenRule(f'it adds {_phrase(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars')
    for statistic in tf.get_collection(MOVING_STATISTICS):
        if not statistic.value.dtype.is_floating and _depends_on_what_is_fed([statistic.value.op]):
            raise BrokenRule(f'the integer variable {statistic.variable.op.name} is assigned a value that depends '
                             'on the images, which differ between towers; make the variable float32')
    for collection in (tf.GraphKeys.LOSSES, tf.GraphKeys.ACTIVATIONS, MOVING_STATISTICS):
        for entry in tf.get_collection(collection):
            if not getattr(entry, 'name', scope).startswith(scope):
                raise BrokenRule(f'it adds {entry.name.split(":")[0]}, made in an absolute name scope, to the '
                                 f'collection {collection}, where the tower does not find it; leave out '
                                 'tf.name_scope(None) and scopes that end with /')


def check_operations(logits: tf.Tensor) -> None:
    """What the logits, losses and statistics need waits for nothing that no tower feeds; no operation writes."""
    for operation in _operations(with_inputs(_results(logits)) | _initialisers()):
        name = relative(operation.name)
        if operation.op in ('Placeholder', 'PlaceholderWithDefault') and not name.startswith(FED):
            raise BrokenRule(f'it makes the placeholder {name}, which nothing feeds{place_of(operation.name)}; make it '
                             'a constant, or use the argument `training`')
        if _SOURCES.fullmatch(operation.op):
            raise BrokenRule(f'its operation {name} is a {operation.op}, which nothing starts or fills'
                             f'{place_of(operation.name)}; use the images that the function is given, and '
                             'instead of a table tf.gather from a constant')
    for operation in _operations(set(tf.get_default_graph().get_operations()) - _initialisers()):
        if WRITES.fullmatch(operation.op):
            raise BrokenRule(f'its operation {relative(operation.name)} changes a variable{place_of(operation.name)}, '
                             'and each update mode would run it a different number of times; leave it out '
                             '(--optimizer takes the steps, and --warm_start begins with the values of a checkpoint), '
                             f'or for moving statistics {_FOR_STATISTICS}')


def _check_evaluation(in_training, in_evaluation):
    """Evaluation has the variables of training. The arguments are as `_variables` returns them."""
    for name, description in in_evaluation.items():
        if description != in_training.get(name):
            raise BrokenRule(f"the variable {name} is {description} in evaluation, but "
                             f"{in_training.get(name, 'not made')} in training; make it the same in both")


# Each of these returns warnings.

def _pinned():
    """Operations that the network puts on one GPU are computed there for every tower."""
    for operation in tf.get_default_graph().get_operations():
        device = tf.DeviceSpec.from_string(operation.device)
        if device.device_index is not None and device.device_type != 'CPU':
            return [f'its operation {relative(operation.name)} is on {operation.device}{place_of(operation.name)}, and '
                    'so in all towers, whatever their devices; leave out tf.device']
    return []


def _unread_collections(logits):
    """Collections of the network's own look like losses and are none."""
    known = {MOVING_STATISTICS, IN_VAIN, *(value for value in vars(tf.GraphKeys).values() if isinstance(value, str))}
    losses = tf.get_collection(tf.GraphKeys.LOSSES)
    used = {operation.name for operation in with_inputs([logits.op, *[loss.op for loss in losses]])}
    warnings = []
    if in_vain := tf.get_collection(IN_VAIN):
        name, others = in_vain[0].op.name, f', nor {len(in_vain) - 1} others' * (len(in_vain) > 1)
        warnings = [f'its {relative(name)} assigns to a variable, but nothing needs the assignment{place_of(name)}'
                    f'{others}; add assignments to tf.GraphKeys.UPDATE_OPS']
    for key in set(tf.get_default_graph().get_all_collection_keys()) - known:
        # Scalars are losses; variables that are collected are often meant for one outside the function.
        unread = [entry for entry in tf.get_collection(key) if (
            entry.shape.rank == 0 and entry.op.name not in used if isinstance(entry, tf.Tensor)
            else not losses and any(entry is variable for variable in tf.trainable_variables()))]
        if unread:
            warnings.append(f'it adds to the collection {key}, which nothing reads{place_of(unread[0].op.name)}; add '
                            'losses to tf.GraphKeys.LOSSES')
    return warnings


def _evaluation_warnings(images, logits):
    """Outputs in evaluation cannot be logits, are random, or depend on the other images of the batch."""
    if logits.op.type in _NO_LOGITS:
        return [f'its outputs are those of a {logits.op.type}{place_of(logits.op.name)}; return logits, as they are '
                'before a softmax, sigmoid or ReLU']
    fed = np.random.default_rng(0).standard_normal([3, *images.shape.as_list()[1:]], np.float32)
    try:
        with cpu_session(tf.get_default_graph()) as session:
            for noise in (1.0, 0.1, 0.01):  # so much that the images differ, but no more than the network can bear
                rehearsed_steps.initialise(session, np.random.default_rng(0), noise)
                together = session.run(logits, {images: fed[:2]})
                if np.isfinite(together).all():
                    break
            else:
                return []
            again = session.run(logits, {images: fed[:2]})
            beside_another = np.stack([session.run(logits, {images: fed[[i, 2]]})[0] for i in range(2)])
    except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
        return []
    if not np.array_equal(again, together) and (drawn := _of_types(_DRAWS, with_inputs(_results(logits)))):
        return [f'its operation {drawn[0]} draws random numbers in evaluation too, so predictions vary from run to '
                'run; use the operation only where `training` is true']
    if np.abs(beside_another - together).max() > _ROUNDING * np.abs(together).max():
        return ['the logits of an image depend on the other images of its batch in evaluation too, so predictions '
                'change with the batch; use statistics of the batch only where `training` is true']
    return []


def _of_types(types, among=None):
    """Returns the names of the operations of such types among some, by default all; initialisers are left out."""
    among = set(tf.get_default_graph().get_operations()) if among is None else among
    return [relative(operation.name) for operation in _operations(among - _initialisers())
            if types.fullmatch(operation.op)]


def _depends_on_what_is_fed(operations):
    return any(relative(operation.name).startswith(FED) for operation in with_inputs(operations))


def _initialisers():
    """Returns the operations that give the variables of the current graph their initial values."""
    return with_inputs(variable.initializer for variable in tf.global_variables())


def _operations(among):
    """Returns the NodeDefs of some operations of the graph, and of all its functions."""
    check_size()
    definition = tf.get_default_graph().as_graph_def()
    names = {operation.name for operation in among}
    operations = [node for node in definition.node if node.name in names]
    for function in definition.library.function:  # branches of a tf.cond, the body of a tf.while_loop
        operations += function.node_def
    return operations


def _phrase(value):
    """Returns a phrase for what a network returned or collected, such as 'a tensor float32 (8, 10)'."""
    return f'a tensor {value.dtype.name} {value.shape}' if isinstance(value, tf.Tensor) else type(value).__name__
