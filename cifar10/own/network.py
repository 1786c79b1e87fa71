"""A user's own network: a function in a Python file, as people write it for one device.

    def network(images, num_classes, training):  # plain graph code
        ...
        return logits

It is called for each kind of batch (training or evaluation, number of images), but never for a tower: each tower gets
a copy of what it has computed. What would train wrongly in silence is refused, or reported in a warning.
"""
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.console import Line
from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, is_deterministic, place_of
from cifar10.model import NUM_CLASSES, Network, network_draws
from cifar10.model.layers import MovingStatistic, frozen_pattern
from cifar10.own import code, rehearsal
from cifar10.own.call import POSITION, phrase
from cifar10.own.code import BrokenRule
from cifar10.own.copied import copied_here, copy, uses
from cifar10.own.mixed import computes_in
from cifar10.own.traced import DRAWS, Traced, trace

_FLAG = 'network'
_STATELESS = re.compile(r'Stateless(Random|Truncated|Parameterized)\w*')  # these draw the same numbers again
# These add in the order of arrival, unless operations must be deterministic; two trials may miss it.
_BY_ARRIVAL = re.compile(r'CropAndResizeGrad\w+')
_NO_LOGITS = ('Softmax', 'Sigmoid', 'Tanh', 'Relu', 'Relu6', 'Softplus')  # types of operations
_ROUNDING = 1e-3  # of logits, relative to the largest
_BY_BATCH = ('the logits of an image depend on the other images of its batch in evaluation too, so predictions change '
             'with the batch; use statistics of the batch only where `training` is true')


def network(name: str) -> Network:
    """Imports the network that 'FILE.py:FUNCTION' names."""
    function = code.function(_FLAG, name, 'images, num_classes, training', each_time=True)

    def inference(images, training=False, num_classes=NUM_CLASSES):
        with code.usage_errors(_FLAG, name, f'; {fed(images)}: build it for this size, or change --image_size, and '
                                                'write -1 or images.shape[0] for the number of images'):
            return inference_of(function, images, training, num_classes, code.traced(name))

    return Network(inference, operations=functools.partial(operations_of, name))


def operations_of(name: str, training: bool, count: int) -> list[tuple[str, str]] | None:
    """Returns what `Network.operations` does, of the network that 'FILE.py:FUNCTION' names."""
    found = latest(code.traced(name), training, count)
    return found and found.described()


def inference_of(function: Callable, images: tf.Tensor, training: bool, num_classes: int, known: dict) -> tf.Tensor:
    """Builds a copy of a network function; see `Network.inference`. `known` is as for `traced_once`."""
    def call(images, training=training):
        return function(images, num_classes, training)
    inputs = dict(images=images)
    check = functools.partial(check_logits, images, num_classes)
    traced = traced_once(call, inputs, training, check, known)
    if not training:  # which of its variables are trained is said where it is called for training
        if not latest(known, True):
            with network_draws.at_position(0, tf.zeros([], tf.int64)):
                traced_once(functools.partial(call, training=True), inputs, True, check, known)
        trained = {each.name for each in latest(known, True).variables if each.trained}
        traced = traced._replace(variables=tuple(
            each._replace(trained=each.name in trained) for each in traced.variables))
    return built(traced, inputs)[0]


def check_logits(images: tf.Tensor, num_classes: int, logits: Any) -> None:
    """Raises a BrokenRule if something is not the logits of images."""
    is_tensor = isinstance(logits, tf.Tensor)
    if is_tensor and logits.dtype.is_floating and logits.shape.rank == 2 and logits.shape[1] == num_classes and (
            logits.shape[:1].is_compatible_with(images.shape[:1])):
        return
    if is_tensor and logits.shape.rank == 2 and logits.shape[1] == num_classes:
        raise BrokenRule(f'it returns {logits.shape[0]} rows for {images.shape[0]} images'
                         f'{place_of(logits.op.name)}, and {fed(images)}; in a tf.reshape, write -1 or '
                         'images.shape[0] for the number of images, and their size as it is here')
    place = place_of(logits.op.name) if is_tensor else ''
    raise BrokenRule(f'it returns {phrase(logits)}{place}; return logits, float [images, {num_classes}] '
                     f'({fed(images)})')


def fed(images: tf.Tensor) -> str:
    """Returns a phrase for the images that a network is fed."""
    height, width = images.shape[1:3]
    return f'it is fed {height}x{width} images' if height else 'it is fed images of several sizes'


def traced_once(function: Callable, inputs: Mapping[str, tf.Tensor], training: bool, check: Callable, known: dict,
                **options: Any) -> Traced:
    """Returns the Traced of a function.

    Args:
      function, training, check: as for `traced.trace`, which gets the options.
      inputs: what copies are fed, by the names of the inputs.
      known: what was traced of this function; what is traced now is added.
    """
    seed = tf.get_default_graph().seed or 0
    shape = next(iter(inputs.values())).shape
    key = training, shape[0] if shape.rank else None, repr((
        *((name, each.shape.as_list(), each.dtype.name) for name, each in inputs.items()), seed,
        network_draws.current_seed(), frozen_pattern()))
    known[key] = known.pop(key, None) or _trace_in_type(
        function, inputs, training, seed, latest(known, training), check=check, **options)
    return known[key]


def latest(known: Mapping[tuple, Traced], training: bool, count: int | None = None) -> Traced | None:
    """Returns what was traced last, for training or evaluation, with so many images if they are given; or None."""
    return next((known[key] for key in reversed(known) if key[:2] == (training, count or key[1])), None)


def built(traced: Traced, inputs: Mapping[str, tf.Tensor]) -> list[tf.Tensor]:
    """Builds a copy of a function, with its losses and assignments; returns what is in `Traced.outputs`, as float32."""
    with tf.device('/cpu:0'):
        tf.train.get_or_create_global_step()  # which a network may ask for, in evaluation too
    inputs = {name: tf.cast(each, traced.type_of(name)) for name, each in inputs.items()}
    if uses(traced, POSITION):
        inputs[POSITION] = network_draws.current_position()
    found = copy(traced, inputs)
    for name, loss in zip(traced.names, found.outputs[len(found.outputs) - len(traced.names):]):
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.identity(loss, name))
    for activation, name in zip(found.activations, traced.activations):
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, tf.identity(activation, name.partition(':')[0]))
    is_first = sum(each is traced for each in copied_here()) == 1
    for summary in found.summaries if is_first else ():  # those of one tower, for all
        tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)
    for variable, value, keep in found.assignments:
        # The identity puts the value into the name scope of the calling tower.
        tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(variable, tf.identity(value, 'statistic'), keep))
    return found.outputs


def _trace_in_type(function, inputs, training, seed, other, **options):
    """Returns the Traced of a function, which computes in the type of its inputs, whether it was written so or not.

    The one of another batch tells what is to be expected, or is None.
    """
    known = other.known if other else ()
    given = {name: (each.dtype, each.shape) for name, each in inputs.items()}
    narrow = {dtype for dtype, _ in given.values() if dtype in (tf.bfloat16, tf.float16)}
    if not narrow:
        return trace(function, given, training, seed, known=known, **options)
    dtype, = narrow
    try:
        if not (other and other.narrowed):
            found = trace(function, given, training, seed, known=known, **options)
            if computes_in(found.operations(), dtype):  # it casts by itself
                return found
    except Exception:  # what it meets in float32, too, is told there
        pass
    given = {name: (tf.float32 if each == dtype else each, shape) for name, (each, shape) in given.items()}
    return trace(function, given, training, seed, narrow_to=dtype, known=known, **options)


def check(name: str, *arguments: Any, **options: Any) -> list[str]:
    """Raises a UsageError if the network breaks a rule; returns warnings. The arguments are as for `rehearse`."""
    with code.usage_errors(_FLAG, name):
        found = rehearse(*arguments, draws=functools.partial(code.draws, name), **options)
    return [Line('warning', f'--network={name}: {warning}') for warning in found]


def rehearse(inference: Callable, batch_size: int, sizes: Sequence[int], dtype: tf.DType, seed: int,
             in_numbers: bool = True, draws: Callable[[], bool] = lambda: False,
             tower: Callable = rehearsal.tower) -> list[str]:
    """Builds a network for training and for evaluation, and checks the rules.

    Args:
      inference: function (images, training) -> logits, which builds a copy, as `inference_of` does.
      batch_size: images in a training batch.
      sizes: their heights and widths in the course of a run; evaluation uses the last.
      seed: of the run.
      in_numbers: whether the gradients of a batch are compared with those of its halves.
      draws: function that returns whether the network's code has drawn random numbers of Python or NumPy.
      tower: as in `rehearsal.Rehearsal`.

    Returns:
      Phrases about things that are allowed, but probably a mistake.

    Raises:
      BrokenRule: the network breaks a rule.
    """
    rehearsed = rehearsal.Rehearsal(inference, batch_size, sizes, dtype, seed, draws, tower)
    training, _ = rehearsal.built(rehearsed, batch_size, training=True)
    variables = {each.name: each for each in training.variables}
    if not training.train_op and not training.gradients.keys() & variables.keys():
        raise BrokenRule('its logits depend on no trainable variable; make variables with tf.get_variable, and '
                         'neither stop their gradients nor freeze them all')
    evaluation, warnings = rehearsal.built(rehearsed, 2, training=False, then=_evaluation_warnings)
    for each in evaluation.variables:
        before = variables.get(each.name)
        if before is None or (each.shape, each.dtype) != (before.shape, before.dtype):
            raise BrokenRule(f'the variable {each.name} is {_described(each)} in evaluation, but '
                             f"{_described(before) if before else 'not made'} in training; make it the same in both")
    # What normalises with its batch in evaluation does so in training, where numbers would tell it once more.
    return _warnings(training) + warnings + _numbers(rehearsed, training, in_numbers and _BY_BATCH not in warnings)


def _described(variable):
    return f'{variable.shape.as_list()}, {variable.dtype.name}'


def _warnings(traced):
    """Returns warnings about collections and assignments that nothing reads."""
    known = {MOVING_STATISTICS, *(value for value in vars(tf.GraphKeys).values() if isinstance(value, str))}
    used = {node.name for piece in traced.forward for node in piece.definition.node}
    warnings = []
    with traced.graph.as_default():
        warnings += [f'nothing feeds its placeholder {name}, which keeps its default{place_of(name)}; to feed it, '
                     'return logits, {placeholder: value}' for name in traced.unfed]
        warnings += traced.train_op.told if traced.train_op else ()
        if in_vain := traced.in_vain:
            others = f', nor {len(in_vain) - 1} others' * (len(in_vain) > 1)
            remedy = ('let the train_op wait for tf.get_collection(tf.GraphKeys.UPDATE_OPS)' if traced.train_op else
                      'add assignments to tf.GraphKeys.UPDATE_OPS')
            warnings.append(f'its {in_vain[0]} assigns to a variable, but nothing needs the assignment'
                            f'{place_of(in_vain[0])}{others}; {remedy}')
        losses = tf.get_collection(tf.GraphKeys.LOSSES)
        unread = {}
        for key in sorted(set(traced.graph.get_all_collection_keys()) - known, key=str):
            # Scalars are losses; variables that are collected are often meant for one outside the function.
            unread[key] = [entry for entry in tf.get_collection(key) if (
                entry.shape.rank == 0 and entry.dtype.is_floating and entry.op.name not in used
                if isinstance(entry, tf.Tensor)
                else not losses and any(entry is variable for variable in tf.trainable_variables()))]
        keys = [key for key, entries in unread.items() if entries]
        if keys:
            others = f', nor {len(keys) - 1} others' * (len(keys) > 1)
            warnings.append(f'it adds to the collection {keys[0]}, which nothing reads'
                            f'{place_of(unread[keys[0]][0].op.name)}{others}; if a loss is meant, add it to '
                            'tf.GraphKeys.LOSSES')
    return warnings


def _numbers(rehearsed, traced, in_numbers):
    """Returns warnings about numbers that differ from run to run, or between towers and one tower."""
    with traced.graph.as_default():
        drawn = {types: _of_types(types, traced.operations()) for types in (DRAWS, _STATELESS, _BY_ARRIVAL)}
    if drawn[_BY_ARRIVAL] and not is_deterministic():
        return [f'its operation {drawn[_BY_ARRIVAL][0]} has other bits each time, so a resumed run does not end with '
                'the same bits; use --deterministic']
    draws = draws_others(traced)
    warnings = [f'{draws}; cifar10.model.dropout and uniform_like draw the same'] * bool(draws)
    return warnings + (rehearsal.compare(rehearsed, drawn[DRAWS], drawn[_STATELESS]) if in_numbers else [])


def draws_others(traced: Traced) -> str:
    """Returns a phrase that says which lines draw other random numbers after a resume; '' if none does."""
    with traced.graph.as_default():
        found = {re.sub('(?<= of ).*/', '', place_of(name).strip(' ()')) or name
                 for name in _of_types(DRAWS, traced.operations())}
    lines, others = sorted(found, key=lambda line: (len(line), line))[:2], len(found) - 2
    if others > 0:
        lines = [', '.join(lines), f"{others} other{'s' * (others > 1)}"]
    return f"{' and '.join(lines)} draw{'s' * (len(found) == 1)} other random numbers after a resume" if found else ''


def _of_types(types, operations):
    return [node.name for node in operations if types.fullmatch(node.op)]


def _evaluation_warnings(traced, images, logits):
    """Outputs in evaluation cannot be logits, are random, or depend on the other images of the batch."""
    with traced.graph.as_default():
        last = traced.graph.get_tensor_by_name(traced.outputs[0]).op
        if last.type in _NO_LOGITS:
            return [f'its outputs are those of a {last.type}{place_of(last.name)}; return logits, as they are '
                    'before a softmax, sigmoid or ReLU']
    fed = np.random.default_rng(0).standard_normal([3, *images.shape.as_list()[1:]], np.float32)
    try:
        with cpu_session(tf.get_default_graph()) as session:
            for noise in (1.0, 0.1, 0.01):  # so much that the images differ, but no more than the network can bear
                rehearsal.initialise(session, np.random.default_rng(0), noise)
                together = session.run(logits, {images: fed[:2]})
                if np.isfinite(together).all():
                    break
            else:
                return []
            again = session.run(logits, {images: fed[:2]})
            beside_another = np.stack([session.run(logits, {images: fed[[i, 2]]})[0] for i in range(2)])
    except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
        return []
    if not np.array_equal(again, together) and (drawn := _of_types(DRAWS, traced.operations())):
        return [f'its operation {drawn[0]} draws random numbers in evaluation too, so predictions vary from run to '
                'run; use the operation only where `training` is true']
    if np.abs(beside_another - together).max() > _ROUNDING * np.abs(together).max():
        return [_BY_BATCH]
    return []
