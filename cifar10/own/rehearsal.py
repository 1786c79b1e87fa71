"""Rehearses a user's network in numbers: two towers must compute what one tower computes that has the images of both.

They run on random images, with noise on the initial values.
"""
import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.errors import reason
from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, place_of, seeded_graph, with_inputs
from cifar10.model.network_draws import at_position
from cifar10.own.call import STEP
from cifar10.own.code import BrokenRule
from cifar10.own.copied import SCOPE, copied_here, uses
from cifar10.own.traced import Traced

# Types of operations whose random numbers are fed.
_FED_DRAWS = re.compile(r'(Stateless)?(Random(Standard)?Normal|RandomUniform|TruncatedNormal)(V2)?')
_DRAWN = 0.9  # is fed for each; with it, dropout at a rate of up to 0.9 drops nothing
_PIXELS = 2 ** 14  # in the batch of a tower at most, so that a rehearsal of a small network takes a second
_LATER = 10 ** 6  # a global step after which nothing is in its beginning
_NOISE = 0.02  # standard deviation; without noise, many gradients are 0 where the last layer begins with zeros
# A gradient may differ by ten times what it changes where each pixel changes by a hundred-thousandth. Behind many ReLUs
# rounding needs up to 2.5 times that, and now and then 30 times, because some get to the other side of 0: so a gradient
# must differ for other images and initial values, too. A sum over the images needs far more.
_NEARBY, _ROUNDING, _TRIALS = 1e-5, 10, 3
_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 0.1  # of a gradient, relative to its largest element, in float32 and otherwise
_NOTHING = 2e-5  # a gradient so small, relative to the largest of all, is rounding
# Of what a variable is moved by. With each image given twice, a sum is twice as large; the unbiased variance of two
# values, which batch normalisation follows, is a third smaller.
_TOLERANCE_OF_MOVED = 0.6


class Rehearsal(NamedTuple):
    """What is rehearsed; see `network.rehearse`.

    Attributes:
      inference, batch_size, sizes, dtype, seed, draws: its arguments.
      tower: function (inference, images, scope) -> (a loss, (phrase, gradient) pairs), which builds a tower.
    """
    inference: Callable
    batch_size: int
    sizes: Sequence[int]
    dtype: tf.DType
    seed: int
    draws: Callable[[], bool]
    tower: Callable

    @property
    def few(self) -> int:
        """How many images a tower gets: fewer than in training where these would take long."""
        most = max(2, _PIXELS // self.sizes[0] ** 2) if self.dtype == tf.float32 else 2  # CPUs may emulate other types
        return min(self.batch_size, most)


class _Tower(NamedTuple):
    """A network that is built for training.

    Attributes:
      images, first: what it is fed: a batch, and the position of its first example.
      gradients: those of the sum of its losses and of a cross entropy, by phrases for them.
      moved: what a step of this tower alone would add to the variables that it assigns, by their names.
      draws: the values that are fed for random numbers where these would differ between towers, by their tensors.
      drawn: the names of the operations that draw them.
      needed: the names of all operations of the network that these gradients and statistics need.
    """
    images: tf.Tensor
    first: tf.Tensor
    gradients: dict
    moved: dict
    draws: dict
    drawn: frozenset
    needed: frozenset

    @property
    def normalises(self) -> bool:
        """Whether it has moving statistics of its images, and so may use those of its batch."""
        return self.images.op in with_inputs(value.op for value in self.moved.values())


def built(rehearsal: Rehearsal, batch_size: int, training: bool,
          then: Callable = lambda *_: None) -> tuple[Traced, Any]:
    """Builds a network in a graph of its own; returns (what was traced of it, what `then` returns).

    `then` is called in the graph with what was traced, the images and the logits.
    """
    side = _static_side(rehearsal) if training else rehearsal.sizes[-1]
    with seeded_graph(rehearsal.seed):
        images = tf.placeholder(rehearsal.dtype if training else tf.float32, [batch_size, side, side, 3])
        with at_position(rehearsal.seed, tf.placeholder(tf.int64, [])) if training else contextlib.nullcontext():
            logits = rehearsal.inference(images, training)
        traced, = copied_here()
        return traced, then(traced, images, logits)


def _static_side(rehearsal):
    """Returns the height and width of training images that the graph knows; None if there are several."""
    return rehearsal.sizes[0] if len(rehearsal.sizes) == 1 else None


def tower(inference: Callable, images: tf.Tensor, scope: str) -> tuple[tf.Tensor, list[tuple[str, tf.Tensor]]]:
    """Builds a tower of a network, which trains class 0; see `Rehearsal`."""
    logits = inference(images, True)
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.zeros([images.shape[0]], tf.int32), logits=logits)
    loss = tf.add_n([*tf.get_collection(tf.GraphKeys.LOSSES, scope), tf.reduce_mean(cross_entropy)])
    variables = tf.trainable_variables()
    return loss, [(gradient_of(each.op.name), gradient) for each, gradient in zip(
        variables, tf.gradients(loss, variables))]


def gradient_of(variable: str) -> str:
    """Returns the phrase for the gradient of a variable, given by its name."""
    return f'gradient of {variable}'


def _tower(rehearsal, batch_size, k):
    """Builds the tower number k of the current graph."""
    side = _static_side(rehearsal)
    images, first = tf.placeholder(rehearsal.dtype, [batch_size, side, side, 3]), tf.placeholder(tf.int64, [])
    with tf.name_scope(f'tower_{k}') as scope, tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
        with at_position(rehearsal.seed, first):
            loss, pairs = rehearsal.tower(rehearsal.inference, images, scope)
    gradients = {name: gradient for name, gradient in pairs if gradient is not None}
    statistics = tf.get_collection(MOVING_STATISTICS, scope)
    needed = with_inputs(each.op for each in (loss, *(each.value for each in statistics), *gradients.values()))
    draws = [tensor for operation in needed if _FED_DRAWS.fullmatch(operation.type)
             for tensor in operation.outputs if tensor.shape.is_fully_defined()]

    def names(operations):
        return frozenset(each.name.removeprefix(f'{scope}{SCOPE}/') for each in operations)
    return _Tower(images, first, gradients, _moved(statistics),
                  {tensor: np.full(tensor.shape, _DRAWN, tensor.dtype.as_numpy_dtype) for tensor in draws},
                  names(tensor.op for tensor in draws), names(needed))


def _moved(statistics):
    """Returns what moving statistics add to their variables, by the names of these."""
    before, moved = {}, {}
    for variable, value, keep in statistics:
        name = variable.op.name
        before[name] = variable.read_value()
        now, value = moved.get(name, before[name]), tf.cast(value, variable.dtype.base_dtype)
        moved[name] = now + value if keep is None else keep * now + (1 - keep) * value
    return {name: after - before[name] for name, after in moved.items()}


def compare(rehearsal: Rehearsal, drawn: Sequence[str], stateless: Sequence[str]) -> list[str]:
    """Computes what two towers compute, and one tower that has the images of both; returns warnings.

    Where they may normalise by their batch, both have the same images, so that its statistics are those of one tower.

    Args:
      drawn, stateless: the names of the operations of the network that draw random numbers, the latter the same again.

    Raises:
      BrokenRule: there is no answer with the images of both.
    """
    with seeded_graph(rehearsal.seed):
        tf.train.get_or_create_global_step()
        half = _tower(rehearsal, rehearsal.few, 0)
        tf.set_random_seed(rehearsal.seed + 1)  # what the code draws itself is other numbers then
        whole = _tower(rehearsal, 2 * rehearsal.few, 1)
        one, other = copied_here()
        _refuse_other_gradients(half, whole)
        _refuse_other_calls(rehearsal, one, other)
        if one.train_op and (followed := _changed([one.train_op.piece], [other.train_op.piece])):
            name = next(iter(followed))
            return [f'its update uses {name}{place_of(name, other.graph)}, which follows the number of images of a '
                    'tower, and not of all towers; give it the number that you mean']
        if others := sorted((half.needed & set(drawn)) - half.drawn):
            return [f'what its operation {others[0]} draws differs between towers, so these were not compared with one '
                    'tower']
        # Draws by the position are those of one tower, unless what they have drawn is fed.
        stateless = half.needed.intersection(stateless)
        is_comparable = half.drawn.issuperset(stateless) if half.normalises else not _repeats(one, stateless)
        with cpu_session(tf.get_default_graph()) as session:
            # What follows the global step may do something else later.
            for step in (0, _LATER) if uses(one, STEP) else (0,):
                if found := _compared(rehearsal, session, half, whole, is_comparable, step):
                    return found
            return []


def _refuse_other_gradients(half, whole):
    """Raises a BrokenRule if a tower with more images has more gradients."""
    for name, gradient in whole.gradients.items():
        if name not in half.gradients:
            raise BrokenRule(f'the number of its gradients follows the number of images{place_of(gradient.op.name)}, '
                             'and those of single images have no mean over the towers; take gradients of the mean loss')


def _refuse_other_calls(rehearsal, one, other):
    """Raises a BrokenRule if each call of the function has other constants."""
    if rehearsal.draws() or _floats(_changed(one.forward, other.forward)) or _changed(
            one.initial.values(), other.initial.values()):
        again, _ = built(rehearsal, 2 * rehearsal.few, training=True)
        _refuse_other_constants('constant', other.forward, again.forward, again.graph)
        # It may follow the seed.
        _refuse_other_constants('initial value', one.initial.values(), again.initial.values(), again.graph)


def _repeats(traced, draws):
    """Returns whether one of the draws, given by their names, is the same in each tower, whatever it is fed."""
    inputs = {traced.graph.get_tensor_by_name(tensor).op for name, tensor in traced.inputs.items() if name != STEP}
    known = {operation.name: operation for operation in traced.graph.get_operations()}
    return any(inputs.isdisjoint(with_inputs([known[name]])) for name in draws if name in known)


def _changed(before, after):
    """Returns the values, by their names, of the constants that have other ones in another call's pieces."""
    values, others = ({node.name: node.attr['value'].tensor for piece in pieces for node in piece.definition.node
                       if node.op == 'Const'} for pieces in (before, after))
    return {name: value for name, value in others.items() if name in values and value != values[name]}


def _floats(values):
    """Returns which are floating-point numbers: integers may follow the number of images."""
    return [name for name, value in values.items() if tf.as_dtype(value.dtype).is_floating]


def _refuse_other_constants(kind, before, after, graph):
    """Raises a BrokenRule if another call of the function has other constants."""
    for name in _changed(before, after):
        with graph.as_default():
            raise BrokenRule(f'its {kind} {name}{place_of(name)} is another one each time that the file is run; give '
                             'random numbers a fixed seed, as in np.random.default_rng(0)')


def _compared(rehearsal, session, half, whole, is_comparable, step):
    suspected = None
    for seed in range(_TRIALS):
        try:
            first, again, second, together, nearby = _trial(rehearsal, session, half, whole, seed, step)
        except tf.errors.OpError as error:  # an operation for GPUs only, or an error that the first step will report
            return [f'it fails on random images ({reason(error)}), so its towers were not compared with one tower']
        others = [name for name, gradient in first.gradients.items()
                  if gradient.tobytes() != again.gradients[name].tobytes()]
        if others:
            return [f'its {others[0]} differs in bits when it is computed again, so a resumed run does not '
                    'end with the same bits; use --deterministic, if you have not, or other operations']
        lost = [name for name, gradient in together.gradients.items()
                if _largest(nearby.gradients[name] - gradient) > _largest(gradient) / 2]
        if lost and rehearsal.few == 1 and half.normalises:
            return [f'its {lost[0]} is nothing but rounding with --batch_size=1, where a layer with one '
                    'value for each channel is normalised by that value; use a larger --batch_size']
        apart = _apart(rehearsal, first, second, together, nearby)
        suspected = {name: warning for name, warning in apart.items() if seed == 0 or name in suspected}
        if not (suspected and is_comparable):
            return []
    return list(suspected.values())[:1]


class _Computed(NamedTuple):
    """What a tower has computed, each by the names of the variables: its gradients, and its `Tower.moved`."""
    gradients: dict
    moved: dict


def _trial(rehearsal, session, half, whole, seed, step):
    """Computes the first tower, twice, the second, and one tower that has the images of both, for random images.

    The last two are of that tower, and of the same where the images change a little.
    """
    random = np.random.default_rng(seed)
    side, count = rehearsal.sizes[0], rehearsal.few
    halves = random.standard_normal([2, count, side, side, 3], np.float32)
    # The means of noise are alike. A loss that chooses some images of its batch chooses others where one half is dark.
    halves += np.sort(random.standard_normal(2 * count, np.float32)).reshape([2, count, 1, 1, 1])
    if half.normalises:
        halves[1] = halves[0]
    initialise(session, random, _NOISE, step)
    of_towers = [_computed(session, half, halves[k], k * count) for k in (0, 0, 1)]
    images = np.concatenate(halves)
    signs = random.choice(np.float32([-1, 1]), images.shape)
    together, nearby = (_computed(session, whole, fed, 0) for fed in (images, images * (1 + _NEARBY * signs)))
    return *of_towers, together, nearby


def _apart(rehearsal, first, second, together, nearby):
    """Returns warnings about what two towers and one that has the images of both compute differently, by its name."""
    tolerance = _TOLERANCE if rehearsal.dtype == tf.float32 else _ROUGH_TOLERANCE
    warnings = {}
    # That of a bias before a batch normalisation, for example, is a sum that ought to be 0.
    nothing = _NOTHING * max(map(_largest, together.gradients.values()))
    for name, whole in together.gradients.items():
        mean = (first.gradients[name] + second.gradients[name]) / 2
        if not _are_close(mean, whole, nearby.gradients[name], max(tolerance * _largest(whole), nothing)):
            warnings[name] = (
                f'its {name} depends on how images are divided into batches, so another number of towers '
                'trains another network: a loss is a sum over the images, not a mean, or images are not treated alone, '
                'as in a batch normalisation whose moving averages are not assigned')
    for name, moved_to in first.moved.items():
        if not _are_close(moved_to, together.moved[name], nearby.moved[name], _TOLERANCE_OF_MOVED * _largest(moved_to)):
            warnings[name] = (
                f'what it assigns to {name} depends on how images are divided into batches, and the mean over the '
                'towers is assigned, so another number of towers trains another network; assign means over the '
                'images, not sums, counts or the images themselves')
    return warnings


def initialise(session: tf.Session, random: np.random.Generator, noise: float, step: int = 0) -> None:
    """Gives variables their initial values, with noise on those that are trained.

    `noise` is its standard deviation, `step` the global step.
    """
    session.run(tf.global_variables_initializer())
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    for variable in tf.global_variables():
        if variable.dtype.is_floating and not np.isfinite(values[variable.op.name]).all():
            raise BrokenRule(f'the variable {variable.op.name} begins with infinity or NaN, of which no checkpoint is '
                             'written; use a large number, such as -1e9')
    for variable in tf.trainable_variables():
        if variable.dtype.is_floating:
            values[variable.op.name] += noise * random.standard_normal(variable.shape.as_list(), np.float32)
    values[tf.train.get_global_step().op.name] = step
    _set(session, values)


def _set(session, values):
    """Sets all variables in one go, because a session plans each new set of operations anew."""
    initialisers = [(variable.initializer, values[variable.op.name]) for variable in tf.global_variables()]
    session.run([operation for operation, _ in initialisers], {
        operation.inputs[1]: value for operation, value in initialisers})


def _computed(session, tower, images, first):
    """Computes a tower's gradients and its `moved`, both by the names of the variables."""
    # Those of an example are the same in any tower; but where both have the same images, these are other examples.
    draws = {tensor: drawn for tensor, drawn in tower.draws.items()
             if tower.normalises or not tensor.op.type.startswith('Stateless')}
    moved()
    return _Computed(*session.run((tower.gradients, tower.moved), {tower.images: images, tower.first: first, **draws}))


def _are_close(mean, whole, nearby, tolerance):
    return not np.isfinite(mean).all() or (
        _largest(mean - whole) <= max(tolerance, _ROUNDING * _largest(nearby - whole)))


def _largest(values):
    return np.abs(values).max(initial=0)
