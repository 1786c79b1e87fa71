"""A user's whole model: a function with its own loss and train_op, as Estimator took it; any other is their network.

    def model_fn(features, labels, mode):  # the images, their classes, and 'train', 'eval' or 'infer'
        ...
        return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op)

Each tower gets a copy of what depends on the images. What follows the gradients is done once for each copy of the
variables: for an update mode it is what an optimizer does.
"""
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.errors import reason
from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.model import NUM_CLASSES, Network, classifier, network_draws
from cifar10.model.layers import MovingStatistic
from cifar10.own import code
from cifar10.own import network as plain
from cifar10.own.call import phrase, with_fed
from cifar10.own.code import BrokenRule
from cifar10.own.copied import follow
from cifar10.own.leaving import marking
from cifar10.own.rehearsal import gradient_of
from cifar10.own.traced import Traced
from cifar10.own.train_op import AFTER, BEFORE, Model, divide
from cifar10.parallel.update import move

_FLAG = 'network'
_ARGUMENTS = 'features, labels, mode'
_TRAIN, _EVAL, _INFER = 'train', 'eval', 'infer'  # as tf.estimator.ModeKeys has them
_LEAST = 1e-7  # the smallest probability of a class, so that its logarithm is finite
# Hooks that only look at a training.
_HARMLESS = {tf.train.LoggingTensorHook, tf.train.SummarySaverHook, tf.train.StepCounterHook, tf.train.NanTensorHook,
             tf.train.CheckpointSaverHook, tf.train.ProfilerHook}
_TOWER, _STEP = 'tower_of_a_model', 'step_before_the_update'  # graph collections


class _Tower(NamedTuple):
    """The tower of a model that was built last in a graph: what was copied, and what is averaged."""
    traced: Traced
    averaged: list


def network(name: str) -> Network:
    """Imports the model, or the network, that 'FILE.py:FUNCTION' names."""
    if not _is_model(name):
        return plain.network(name)
    function = code.function(_FLAG, name, _ARGUMENTS, each_time=True)

    def tower(images, labels, num_classes=NUM_CLASSES):
        inputs = dict(features=images, labels=labels)
        with code.usage_errors(_FLAG, name):
            return add_loss(functools.partial(_trained, function), inputs, code.traced(name))

    def inference(images, training=False, num_classes=NUM_CLASSES):
        if training:
            tower(images, _made_up(images, num_classes), num_classes)
            return tf.fill([images.shape[0], num_classes], tf.get_collection(tf.GraphKeys.LOSSES)[-1])
        with code.usage_errors(_FLAG, name):
            return _inferred(function, images, num_classes, code.traced(name))
    return Network(inference, operations=functools.partial(plain.operations_of, name), add_loss=tower,
                   optimizer=lambda: AfterGradients(functools.partial(code.usage_errors, _FLAG, name)))


def check(name: str, *arguments: Any) -> list[str]:
    """Raises a UsageError if the model, or the network, breaks a rule; returns warnings; see `network.rehearse`."""
    options = dict(tower=_rehearsed) if _is_model(name) else {}
    return plain.check(name, *arguments, **options)


def _is_model(name):
    """Returns whether 'FILE.py:FUNCTION' is a model function, by the names of its arguments."""
    return {'features', 'labels'} <= set(code.parameters(_FLAG, name))


def _rehearsed(inference, images, scope):
    """Builds a tower, which is fed made-up classes; see `rehearsal.Rehearsal`."""
    inference(images, True)
    pairs = []
    for value, each in _of_tower():
        if each.variable and not each.is_gradient:
            tf.add_to_collection(MOVING_STATISTICS, MovingStatistic(
                _variable(each.variable), tf.identity(value, 'statistic'), each.keep))
        else:
            phrase_of_it = gradient_of(each.variable) if each.variable else each.values[0]
            again = sum(other.partition(' (')[0] == phrase_of_it for other, _ in pairs)
            pairs.append((phrase_of_it + f' ({again + 1})' * (again > 0), tf.convert_to_tensor(value)))
    return tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES, scope)), pairs


def forget() -> None:
    """Drops what was noted of towers in the current graph, which no Saver can write; once all are built."""
    for name in (_TOWER, _STEP):
        tf.get_default_graph().clear_collection(name)


def _made_up(images, num_classes):
    """Returns a class for each image: the brighter it is, the higher; others where the position is another."""
    brightness = tf.sigmoid(3.0 * tf.reduce_mean(tf.cast(images, tf.float32), [1, 2, 3]))
    positions = tf.cast(network_draws.current_position(), tf.int32) + tf.range(images.shape[0])
    others = positions // 4 % 3 * num_classes // 3
    return tf.minimum(tf.cast(brightness * num_classes, tf.int32) + others, num_classes - 1)


def _tower_here():
    return tf.get_collection(_TOWER)[0]


def add_loss(function: Callable, inputs: dict[str, tf.Tensor], known: dict) -> dict[str, tf.Tensor]:
    """Builds a tower, and adds its loss to the collection LOSSES; returns its accuracy by its name, if it is known.

    Args:
      function: of the inputs; returns a Model, or (a Model, what placeholders are fed).
      inputs, known: as for `network.traced_once`.
    """
    traced = plain.traced_once(function, inputs, True, lambda model: None, known, cut=divide)
    outputs = plain.built(traced, inputs)
    tensors = dict(zip(traced.outputs, outputs))
    loss, *logits = outputs[:-sum(len(each.values) for each in traced.train_op.averaged)]
    averaged = []
    tf.get_collection_ref(_TOWER)[:] = [_Tower(traced, averaged)]
    for each in traced.train_op.averaged:
        values = [tensors[name] for name in each.values]
        averaged.append(values[0] if len(values) == 1 else tf.IndexedSlices(
            *values, tf.constant(_variable(each.variable).shape.as_list(), values[1].dtype)))
    tf.add_to_collection(tf.GraphKeys.LOSSES, tf.identity(loss, 'loss'))
    if not logits:
        return {}
    correct = classifier.correct(logits[0], inputs['labels'])
    return dict(accuracy=tf.reduce_mean(tf.cast(correct, tf.float32)))


def _variable(name):
    """Returns a variable of the current scope, which exists."""
    dtype = next(each.dtype for each in _tower_here().traced.variables if each.name == name)
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.get_variable(name, dtype=dtype)


class AfterGradients(tf.train.Optimizer):
    """What follows the gradients of a model, in the place of an optimizer.

    Args:
      errors: function that returns the context in which errors of the model are told.
    """

    def __init__(self, errors: Callable):
        super().__init__(use_locking=False, name='update')
        self._errors = errors

    def compute_gradients(self, loss, *arguments, **options):
        """Returns the (gradient, variable) pairs of the tower that was built last, but for those of `others`."""
        del loss, arguments, options
        return [(value, _variable(each.variable)) for value, each in _of_tower() if _is_common(value, each)]

    def others(self):
        """Returns what else is averaged of this tower: other gradients, what is assigned, and other scalars."""
        return [value for value, each in _of_tower() if not _is_common(value, each)]

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        """Adds what follows the gradients, given the means of these and of `others`; increments a global step."""
        del name
        traced = _tower_here().traced
        means = dict.fromkeys(traced.train_op.unused, tf.zeros([]))
        order = sorted(_of_tower(), key=lambda pair: _is_common(*pair), reverse=True)
        for (_, each), (mean, _) in zip(order, grads_and_vars):
            means.update(zip(each.means, [mean] if len(each.means) == 1 else [mean.values, mean.indices]))
        is_first = not tf.get_collection(_STEP)
        if global_step is not None:
            with tf.device(global_step.device):
                tf.get_collection_ref(_STEP)[:] = [tf.identity(global_step.read_value())]
        before, = tf.get_collection(_STEP)  # all updates of a step get the same
        means.update({BEFORE: before, AFTER: before + 1})
        with self._errors():
            updated, summaries = follow(traced, means)
        if global_step is None:
            return tf.group(updated)
        for summary in summaries if is_first else ():
            tf.add_to_collection(tf.GraphKeys.SUMMARIES, summary)
        with tf.control_dependencies([updated, before]):
            return tf.group(global_step.assign_add(1, read_value=False))

    def variables(self):
        """Returns the variables that an update changes."""
        return [_variable(name) for name in _tower_here().traced.train_op.changed]


def _of_tower():
    """Returns (value, Averaged) pairs of the tower that was built last."""
    traced, averaged = _tower_here()
    return list(zip(averaged, traced.train_op.averaged))


def _is_common(value, averaged):
    """Returns whether something is a gradient as all update modes take it."""
    return averaged.is_gradient and isinstance(value, tf.Tensor) and value.dtype == tf.float32


def _trained(function, features, labels):
    """Calls a model function for training; returns a Model, or (a Model, what placeholders are fed)."""
    with marking():
        spec, fed = with_fed(function(features, labels, _TRAIN))
    loss, train_op = (getattr(spec, name, None) for name in ('loss', 'train_op'))
    if loss is None or train_op is None:
        raise BrokenRule(f"in mode 'train' it returns {_described(spec)} without "
                         f"{'loss' if loss is None else 'train_op'}=; return an EstimatorSpec with loss= and train_op=")
    _refuse_what_nothing_calls(spec)
    model = model_of(loss, train_op, _as_logits(getattr(spec, 'predictions', None)))
    return (model, fed) if fed else model


def model_of(loss: Any, train_op: Any, logits: tf.Tensor | None = None) -> Model:
    """Returns what a function has returned as a Model; raises a BrokenRule if it is something else."""
    if not isinstance(loss, tf.Tensor) or loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
        raise BrokenRule(f'its loss is {_described(loss)}; return a float scalar, the mean over the images')
    if not hasattr(train_op, 'op') and not isinstance(train_op, tf.Operation):
        raise BrokenRule(f'its train_op is {_described(train_op)}; return an operation, such as optimizer.minimize('
                         'loss, tf.train.get_global_step())')
    loss = tf.reshape(loss, []) if loss.shape.rank else loss
    train_op = train_op if isinstance(train_op, tf.Operation) else train_op.op
    if moved := move(tf.get_collection(MOVING_STATISTICS)):  # as of `cifar10.model.batch_normalisation`
        train_op = tf.group(train_op, *moved)
    return Model(tf.cast(loss, tf.float32), train_op, logits)


def _refuse_what_nothing_calls(spec):
    """Raises a BrokenRule if a spec has hooks that act on a training, or initialises variables by itself."""
    for name in ('training_hooks', 'training_chief_hooks'):
        for hook in getattr(spec, name, None) or ():
            if type(hook) not in _HARMLESS:
                raise BrokenRule(f'its {name} has a {type(hook).__name__}, which nothing calls; leave it out, and do '
                                 'what it does in the graph')
    make = getattr(spec, 'scaffold_fn', None)
    scaffold = make() if make else getattr(spec, 'scaffold', None)
    if any(getattr(scaffold, name, None) is not None for name in ('init_fn', 'init_op', 'local_init_op')):
        raise BrokenRule('its scaffold gives variables their first values, which nothing calls; leave it out, and use '
                         '--warm_start, or initializer=')


def _described(value):
    return 'None' if value is None else phrase(value)


def _inferred(function, images, num_classes, known):
    """Builds a copy of a model for evaluation; returns logits.

    Many functions know no mode 'infer': where that fails, mode 'eval' is tried, with labels that mean nothing.
    """
    def called(mode, features):
        labels = None if mode == _INFER else tf.zeros([images.shape[0]], tf.int32)
        spec, fed = with_fed(function(features, labels, mode))
        predictions = getattr(spec, 'predictions', None)
        logits = _as_logits(predictions)
        if logits is None:
            found = ', '.join(map(repr, predictions)) if isinstance(predictions, dict) else _described(predictions)
            raise BrokenRule(f"in mode {mode!r} its predictions are {found}; return 'logits' or 'probabilities' in "
                             'predictions=, a dict')
        return (logits, fed) if fed else logits
    inputs = dict(features=images)
    check_logits = functools.partial(plain.check_logits, images, num_classes)
    try:
        traced = plain.traced_once(functools.partial(called, _INFER), inputs, False, check_logits, known)
    except BrokenRule:
        raise
    except Exception as error:
        try:
            traced = plain.traced_once(functools.partial(called, _EVAL), inputs, False, check_logits, known)
        except BrokenRule as rule:
            raise BrokenRule(f"in mode 'infer' it fails ({reason(error)}), and {rule}") from error
        except Exception:
            raise error from None
    return plain.built(traced, inputs)[0]


def _as_logits(predictions):
    """Returns the logits that predictions stand for, or None if these have neither logits nor probabilities."""
    found = predictions if isinstance(predictions, dict) else {}
    if isinstance(found.get('logits'), tf.Tensor):
        return found['logits']
    probabilities = found.get('probabilities')
    return None if probabilities is None else tf.log(tf.maximum(probabilities, _LEAST))
