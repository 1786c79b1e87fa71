"""Rehearses a user's network in towers before a run: all must be the same, and compute what one tower computes.

The towers are built as the update mode will build them, and run on random images, with noise on the initial values.
"""
import collections
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.errors import UsageError, reason
from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, primary_name, seeded_graph, with_inputs
from cifar10.base.own_code import BrokenRule, place_of
from cifar10.model.network_draws import at_position
from cifar10.model.parts import divided
from cifar10.parallel.replicated import Copies
from cifar10.parallel.towers import build_towers, dense, shared_variables

SCOPE = 'rehearsed'  # the name scope of what the network builds
FED = 'fed_in_rehearsal'  # begins the names of the placeholders that are fed
_IN_COPIES = ('where each device has a copy of the variables, their names begin with replica_1/ in the second call; '
              '--variable_update=parameter_server has no copies')
# Attributes in which the same operation may differ from call to call.
_BY_CALL = ('seed', 'seed2', 'shared_name', 'container', 'debug_name', 'token')
# Types of operations whose random numbers are fed.
_FED_DRAWS = re.compile(r'(Stateless)?(Random(Standard)?Normal|RandomUniform|TruncatedNormal)(V2)?')
_DRAWN = 0.9  # is fed for each; with it, dropout at a rate of up to 0.9 drops nothing
_PIXELS = 2 ** 14  # in the batch of a tower at most, so that a rehearsal of a small network takes a second
_NOISE = 0.02  # standard deviation; without noise, many gradients are 0 where the last layer begins with zeros
# A gradient may differ by ten times what it changes where each pixel changes by a hundred-thousandth. Behind many ReLUs
# rounding needs up to 2.5 times that, and now and then 30 times, because some get to the other side of 0: so a gradient
# must differ for other images and initial values, too. A sum over the images needs far more.
_NEARBY, _ROUNDING, _TRIALS = 1e-5, 10, 3
_TOLERANCE, _ROUGH_TOLERANCE = 1e-3, 0.1  # of a gradient, relative to its largest element, in float32 and otherwise
# Of what a variable is moved by. With each image given twice, a sum is twice as large; the unbiased variance of two
# values, which batch normalisation follows, is a third smaller.
_TOLERANCE_OF_MOVED = 0.6


class Rehearsal(NamedTuple):
    """What is rehearsed.

    Attributes:
      inference, sizes, dtype, seed: as for `own_network.rehearse`.
      batch_size: images of a tower.
    """
    inference: Callable
    batch_size: int
    sizes: Sequence[int]
    dtype: tf.DType
    seed: int

    @property
    def static_side(self) -> int | None:
        """The height and width of training images that the graph knows; None if there are several."""
        return self.sizes[0] if len(self.sizes) == 1 else None


class Tower(NamedTuple):
    """A network that is built for training, in a tower.

    Attributes:
      images, first: what it is fed: a batch, and the position of its first example.
      gradients: (gradient, variable) pairs of the sum of its losses and of a cross entropy.
      operations: those that its losses and moving statistics need, as `described` returns them.
      moved: what a step of this tower alone would add to the variables that it assigns, by their names.
      draws: the values that are fed for random numbers where these would differ between towers, by their tensors.
    """
    images: tf.Tensor
    first: tf.Tensor
    gradients: list
    operations: dict
    moved: dict
    draws: dict

    @property
    def normalises(self) -> bool:
        """Whether it has moving statistics of its images, and so may use those of its batch."""
        return self.images.op in with_inputs(value.op for value in self.moved.values())


def batch_size(asked: int, side: int, dtype: tf.DType) -> int:
    """Returns how many images a tower gets in a rehearsal: fewer than in training where these would take long."""
    return min(asked, max(2, _PIXELS // side ** 2) if dtype == tf.float32 else 2)  # CPUs may emulate other types


def build(rehearsal: Rehearsal, count: int, has_copies: bool = False,
          check: Callable[[str, tf.Tensor], None] = lambda *_: None) -> list[Tower]:
    """Builds towers in the current graph; `check` is called in the first with its name scope and the logits."""
    shape = [rehearsal.batch_size, rehearsal.static_side, rehearsal.static_side, 3]
    fed = [(tf.placeholder(rehearsal.dtype, shape, FED), tf.placeholder(tf.int64, [], FED)) for _ in range(count)]

    def tower(k, scope):
        images, first = fed[k]
        try:
            with divided(), at_position(rehearsal.seed, first):
                logits = rehearsal.inference(images, True)
        except UsageError as error:
            if k and has_copies:
                raise UsageError(f'{error}; {_IN_COPIES}') from error
            raise
        if k == 0:
            check(scope, logits)
        built = _with_gradients(images, first, logits)
        if k == 0 and not built.gradients:
            raise BrokenRule('its logits depend on no trainable variable; make variables with tf.get_variable, and '
                             'neither stop their gradients nor freeze them all')
        return built
    with tf.name_scope(SCOPE):
        return build_towers([''] * count, tower, Copies(count).created if has_copies else shared_variables)


def _with_gradients(images, first, logits):
    """Returns the Tower that is being built, and has these logits."""
    cross_entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.zeros([images.shape[0]], tf.int32), logits=logits)
    loss = tf.add_n([*tf.get_collection(tf.GraphKeys.LOSSES), tf.reduce_mean(cross_entropy)])
    variables = tf.trainable_variables()
    # This raises a LookupError if an operation has no gradient.
    gradients = dense([(gradient, variable) for gradient, variable in zip(tf.gradients(loss, variables), variables)
                       if gradient is not None])
    statistics = tf.get_collection(MOVING_STATISTICS)
    results = [loss.op, *(statistic.value.op for statistic in statistics)]
    draws = {tensor: np.full(tensor.shape, _DRAWN, tensor.dtype.as_numpy_dtype)
             for operation in with_inputs(results) if _FED_DRAWS.fullmatch(operation.type)
             for tensor in operation.outputs if tensor.shape.is_fully_defined()}
    return Tower(images, first, gradients, described(results), _moved(statistics), draws)


def _moved(statistics):
    """Returns what moving statistics add to their variables, by the names of these."""
    before, moved = {}, {}
    for variable, value, keep in statistics:
        name = _name_of(variable)
        before[name] = variable.read_value()
        now, value = moved.get(name, before[name]), tf.cast(value, variable.dtype.base_dtype)
        moved[name] = now + value if keep is None else keep * now + (1 - keep) * value
    return {name: after - before[name] for name, after in moved.items()}


def described(operations: Iterable[tf.Operation]) -> dict[tuple, list[str]]:
    """Returns the names of operations and of those that they need, by what they are: (type, shapes, hash)."""
    found = collections.defaultdict(list)
    for operation in with_inputs(operations):
        attributes = sorted((name, value.SerializeToString()) for name, value in operation.node_def.attr.items()
                            if not (name.startswith('_') or name in _BY_CALL or value.WhichOneof('value') == 'func'
                                    or value.tensor.dtype == tf.string.as_datatype_enum))  # it may name the tower
        shapes = str([tensor.shape for tensor in operation.outputs])
        found[operation.type, shapes, hashlib.sha256(repr(attributes).encode()).digest()].append(operation.name)
    return found


def only_in_one(one: dict[tuple, list[str]], other: dict[tuple, list[str]]) -> list[tuple[str, str]]:
    """Returns (type, name) of the operations, as `described` returns them, that only one has; first the other's."""
    return [(description[0], names[-1]) for here, there in ((other, one), (one, other))
            for description, names in here.items() if len(names) > len(there.get(description, ()))]


def refuse_another_network(first: Tower, second: Tower) -> None:
    """Raises a BrokenRule if two towers do not consist of the same operations, or train other variables."""
    one, other = ({_name_of(variable) for _, variable in tower.gradients} for tower in (first, second))
    for name in sorted(one ^ other):
        raise BrokenRule(f'only one of its first two calls trains the variable {name}; train the same in each call'
                         f'{_hint(second)}')
    for kind, name in only_in_one(first.operations, second.operations):
        raise BrokenRule(f'its second call builds a different network from its first: only one of them has the {kind} '
                         f'{relative(name)}{place_of(name)}; build the same in each call{_hint(second)}')


def _hint(tower):
    names = [variable.op.name for _, variable in tower.gradients]
    return f' ({_IN_COPIES})' if any(name.startswith('replica_') for name in names) else ''


def compare(rehearsal: Rehearsal, towers: Sequence[Tower], is_comparable: bool) -> list[str]:
    """Computes what two towers in the current graph compute, and one tower that has the images of both.

    Where they may normalise by their batch, both have the same images, so that its statistics are those of one tower.
    If the network is not `is_comparable`, because of what it draws, nothing is said of that tower. Returns warnings.
    """
    suspected = None
    for seed in range(_TRIALS):
        try:
            first, again, second, together, nearby = _trial(rehearsal, towers, seed)
        except tf.errors.OpError as error:  # an operation for GPUs only, or an error that the first step will report
            return [f'it fails on random images ({reason(error)}), so its towers were not compared with one tower']
        others = [name for name, gradient in first.gradients.items()
                  if gradient.tobytes() != again.gradients[name].tobytes()]
        if others:
            return [f'its gradient of {others[0]} differs in bits when it is computed again, so a resumed run does not '
                    'end with the same bits; use --deterministic, if you have not, or other operations']
        lost = [name for name, gradient in together.gradients.items()
                if _largest(nearby.gradients[name] - gradient) > _largest(gradient) / 2]
        if lost and rehearsal.batch_size == 1 and towers[0].normalises:
            return [f'its gradient of {lost[0]} is nothing but rounding with --batch_size=1, where a layer with one '
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


def _trial(rehearsal, towers, seed):
    """Computes the first tower, twice, the second, and one tower that has the images of both, for random images.

    The last two are of that tower, and of the same where the images change a little.
    """
    random = np.random.default_rng(seed)
    side, count = rehearsal.sizes[0], rehearsal.batch_size
    halves = random.standard_normal([2, count, side, side, 3], np.float32)
    # The means of noise are alike. A loss that chooses some images of its batch chooses others where one half is dark.
    halves += np.sort(random.standard_normal(2 * count, np.float32)).reshape([2, count, 1, 1, 1])
    if towers[0].normalises:
        halves[1] = halves[0]
    with cpu_session(tf.get_default_graph()) as session:
        values = initialise(session, random, _NOISE)
        of_towers = [_computed(session, towers[k], halves[k], k * count) for k in (0, 0, 1)]
    with seeded_graph(rehearsal.seed):
        whole, = build(rehearsal._replace(batch_size=2 * count), 1)
        with cpu_session(tf.get_default_graph()) as session:
            _set(session, values)
            images = np.concatenate(halves)
            signs = random.choice(np.float32([-1, 1]), images.shape)
            together, nearby = (_computed(session, whole, fed, 0) for fed in (images, images * (1 + _NEARBY * signs)))
    return *of_towers, together, nearby


def _apart(rehearsal, first, second, together, nearby):
    """Returns warnings about what two towers and one that has the images of both compute differently, by its name."""
    tolerance = _TOLERANCE if rehearsal.dtype == tf.float32 else _ROUGH_TOLERANCE
    warnings = {}
    for name, whole in together.gradients.items():
        mean = (first.gradients[name] + second.gradients[name]) / 2
        if not _are_close(mean, whole, nearby.gradients[name], tolerance * _largest(whole)):
            warnings[name] = (
                f'its gradient of {name} depends on how images are divided into batches, so another number of towers '
                'trains another network; make losses means over the images, not sums, and treat each image alone')
    for name, moved_to in first.moved.items():
        if not _are_close(moved_to, together.moved[name], nearby.moved[name], _TOLERANCE_OF_MOVED * _largest(moved_to)):
            warnings[name] = (
                f'what it assigns to {name} depends on how images are divided into batches, and the mean over the '
                'towers is assigned, so another number of towers trains another network; assign means over the '
                'images, not sums, counts or the images themselves')
    return warnings


def initialise(session: tf.Session, random: np.random.Generator, noise: float) -> dict[str, np.ndarray]:
    """Gives variables their initial values, with noise on those that are trained; returns their values by their names.

    `noise` is its standard deviation.
    """
    session.run(tf.global_variables_initializer())
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    for variable in tf.global_variables():
        if variable.dtype.is_floating and not np.isfinite(values[variable.op.name]).all():
            raise BrokenRule(f'the variable {variable.op.name} begins with infinity or NaN, of which no checkpoint is '
                             'written; use a large number, such as -1e9')
    for variable in tf.trainable_variables():
        values[variable.op.name] += noise * random.standard_normal(variable.shape.as_list(), np.float32)
    _set(session, values)
    session.run(tf.local_variables_initializer())  # the copies begin as the primaries are
    return values


def _set(session, values):
    """Sets all variables in one go, because a session plans each new set of operations anew."""
    initialisers = [(variable.initializer, values[variable.op.name]) for variable in tf.global_variables()]
    session.run([operation for operation, _ in initialisers], {
        operation.inputs[1]: value for operation, value in initialisers})


def _computed(session, tower, images, first):
    """Computes a tower's gradients and its `moved`; returns both by the names of the variables."""
    gradients = {_name_of(variable): gradient for gradient, variable in tower.gradients}
    # Those of an example are the same in any tower; but where both have the same images, these are other examples.
    draws = {tensor: drawn for tensor, drawn in tower.draws.items()
             if tower.normalises or not tensor.op.type.startswith('Stateless')}
    moved()
    return _Computed(*session.run((gradients, tower.moved), {tower.images: images, tower.first: first, **draws}))


def _name_of(variable):
    """Returns the name of a variable, which is the same in all copies."""
    return primary_name(variable.op.name)


def _are_close(mean, whole, nearby, tolerance):
    return not np.isfinite(mean).all() or (
        _largest(mean - whole) <= max(tolerance, _ROUNDING * _largest(nearby - whole)))


def _largest(values):
    return np.abs(values).max(initial=0)


def relative(name: str) -> str:
    """Returns the name that an operation or a variable has within its tower."""
    return re.sub(rf'\b{SCOPE}/(tower_\d+/)?', '', name)
