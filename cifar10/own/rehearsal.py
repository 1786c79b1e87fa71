"""Rehearses a tower numerically: two towers must compute the same result as one tower with both batches.

They run on made-up batches, with noise on the initial values. This reveals a loss that is a sum, a part of the batch
that depends on the rest, and numbers that differ from run to run.
"""
import collections
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import moved
from cifar10.base.errors import reason
from cifar10.base.graphs import cpu_session, place_of, seeded_graph, with_inputs
from cifar10.own import refusals
from cifar10.own.copying import SCOPE, copy
from cifar10.own.isolated_call import LOSS_SCALE, POSITION, STEP
from cifar10.own.refusals import BrokenRule
from cifar10.own.subgraphs import is_draw
from cifar10.own.tracing import GRADIENT, SCALAR, STATISTIC, Traced

# Types of operations whose random numbers are fed.
_FED = re.compile(r'(Stateless)?(Random(Standard)?Normal|RandomUniform|TruncatedNormal)(V2)?')
_STATELESS = re.compile(r'Stateless(Random(?!Get)|Truncated|Parameterized)\w*')  # these draw the same numbers again
_OF_GRADIENTS = re.compile(r'(^|/)gradients(_\d+)?/')  # the name scope of `tf.gradients`
_DRAWN = 0.9  # the value fed for each draw, so that dropout at a rate of up to 0.9 drops nothing
_LATER = 10 ** 6  # a global step past any initial phase
_NOISE = 0.02  # standard deviation; without noise, many gradients are 0 because the last layer begins with zeros
_NOISE_OF_EVALUATION = 0.1
# A gradient may differ by ten times its change when each input changes by a hundred-thousandth. Behind many ReLUs,
# rounding causes up to 2.5 times this change, and occasionally 30 times, because some inputs cross 0. So a gradient
# must differ for other batches and initial values, too. A sum over the batch differs far more.
_NEARBY, _ROUNDING, _TRIALS = 1e-5, 10, 3
_TOLERANCE = 1e-3  # of a gradient, relative to its largest element
_NOTHING = 2e-5  # relative to the largest gradient; smaller gradients are rounding
# For a statistic's change of a variable. If each example is given twice, a sum doubles; the unbiased variance of
# two values, which batch normalisation follows, is a third smaller.
_TOLERANCE_OF_MOVED = 0.6
_OF_LOGITS = 1e-3  # relative to the largest
_BY_BATCH = ('in evaluation, the logits of an image depend on the other images of its batch; use batch statistics only '
             'if `training` is true')


class _Tower(NamedTuple):
    """A tower built for training.

    Attributes:
      inputs: placeholders by the names of the inputs.
      averaged: the gradients and scalars that leave the tower, by their descriptions.
      moved: the changes to variables by the tower's statistics alone, by variable name.
      draws: the values to feed for random numbers, which would differ between towers, by tensor.
      others: the names of the operations that draw other random numbers.
      scalars: the keys of `averaged` that are scalars.
    """
    inputs: dict
    averaged: dict
    moved: dict
    draws: dict
    others: list
    scalars: frozenset

    @property
    def normalises(self) -> bool:
        """Whether the tower's statistics depend on its batch, so that it may normalise by its batch."""
        return not {each.op for each in self.inputs.values()}.isdisjoint(
            with_inputs(value.op for value in self.moved.values()))


def draws(traced: Traced) -> bool:
    """Returns whether a tower draws random numbers."""
    return any(is_draw(node) or _STATELESS.fullmatch(node.op) for node in traced.operations())


def notes_on_draws(traced: Traced) -> list[str]:
    """Returns a note on the lines that draw different random numbers after a resume."""
    found = {re.sub('(?<= of ).*/', '', place_of(node.name, traced.graph).strip(' ()')) or node.name
             for node in traced.operations() if is_draw(node)}
    lines, others = sorted(found, key=lambda line: (len(line), line))[:2], len(found) - 2
    if others > 0:
        lines = [', '.join(lines), f"{others} other{'s' * (others > 1)}"]
    return [f"{' and '.join(lines)} draw{'s' * (len(found) == 1)} different random numbers after a "
            'resume; use cifar10.model.dropout or uniform_like to repeat the same numbers'] if found else []


def compare(trace: Callable[[int, int], Traced], make_up: Callable, few: int, seed: int) -> list[str]:
    """Compares two towers with one tower that has both batches; returns notes.

    Towers that may normalise by their batch both get the same batch, so that its statistics match the one tower's.

    Args:
      trace: function (examples in the batch, seed) -> the Traced.
      make_up: function (random generator, examples, inputs by their names) -> {name: array} for the inputs.
      few: the number of examples in a tower's batch.
      seed: the seed of the run.

    Raises:
      BrokenRule: the batches of both have no common answer.
    """
    # Code that draws initial values depends on the seed.
    one, other = trace(few, seed + 1), trace(2 * few, seed)
    _refuse_other_constants(one, other, lambda: trace(few, seed))
    if one.after and other.after and (followed := _changed(one.after.piece, other.after.piece)):
        name = next(iter(followed))
        return [f'its update uses {name}{place_of(name, other.graph)}, which depends on the examples of one tower, '
                'not of all towers; write the intended number instead']
    with seeded_graph(seed):
        tf.train.get_or_create_global_step()
        whole, half = (_built(traced, k) for k, traced in enumerate((other, one)))
        _refuse_other_gradients(half, whole)
        if half.others:
            return [f'its operation {half.others[0]} draws different numbers in each tower, so the towers were not '
                    'compared with one tower']
        with cpu_session(tf.get_default_graph()) as session:
            # Code that depends on the global step may change its behaviour later.
            for step in (0, _LATER) if one.uses(STEP) else (0,):
                if found := _compared(make_up, few, session, half, whole, step, other.graph):
                    return found
            return []


def _built(traced, k):
    """Builds tower k of the current graph."""
    with tf.name_scope(f'tower_{k}') as scope, tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
        inputs = _placeholders(traced)
        copied = copy(traced, {**inputs, POSITION: tf.zeros([], tf.int64), LOSS_SCALE: tf.ones([])})
    averaged, statistics = dict[str, tf.Tensor](), []
    for each, value in zip(traced.averaged, copied.averaged):
        if each.kind == STATISTIC:
            statistics.append((copied.variables[each.variable], value, each.keep))
        else:
            name = f'gradient of {each.variable}' if each.kind == GRADIENT else each.values[0]
            again = sum(known.partition(' (')[0] == name for known in averaged)
            averaged[name + f' ({again + 1})' * (again > 0)] = tf.convert_to_tensor(value)
    needed = with_inputs([*(value.op for _, value, _ in statistics), *(value.op for value in averaged.values())])
    drawing = {each for each in needed if is_draw(each.node_def) or _STATELESS.fullmatch(each.type)}
    fed = {each for each in drawing if _FED.fullmatch(each.type) and each.outputs[0].shape.is_fully_defined()}
    draws = {each.outputs[0]: np.full(each.outputs[0].shape, _DRAWN, each.outputs[0].dtype.as_numpy_dtype)
             for each in fed}
    return _Tower(inputs, averaged, _moved(statistics), draws,
                  sorted(each.name.removeprefix(f'{scope}{SCOPE}/') for each in drawing - fed),
                  frozenset(each.values[0] for each in traced.averaged if each.kind == SCALAR))


def _placeholders(traced):
    """Returns placeholders by the names of the inputs of a tower's batch."""
    return {name: tf.placeholder(traced.dtype_of(name), traced.graph.get_tensor_by_name(tensor).shape)
            for name, tensor in traced.inputs.items() if name not in (POSITION, STEP, LOSS_SCALE)}


def _moved(statistics):
    """Returns the changes that statistics make, by variable name."""
    before, moved_to = dict[str, tf.Tensor](), dict[str, tf.Tensor]()
    for variable, value, keep in statistics:
        name = variable.op.name
        before[name] = variable.read_value()
        now, value = moved_to.get(name, before[name]), tf.cast(value, variable.dtype.base_dtype)
        moved_to[name] = now + value if keep is None else keep * now + (1 - keep) * value
    return {name: after - before[name] for name, after in moved_to.items()}


def _refuse_other_gradients(half, whole):
    """Raises a BrokenRule if a tower with more examples has more gradients."""
    for name, gradient in whole.averaged.items():
        if name not in half.averaged:
            raise BrokenRule(f'the number of its gradients depends on the number of examples'
                             f'{place_of(gradient.op.name)}; take gradients of the mean loss')


def _refuse_other_constants(one, other, trace):
    """Raises a BrokenRule if constants differ between calls of the function; `trace` makes the first call again."""
    # Integers may depend on the number of examples. So may constants of gradients: a mean's gradient divides by it.
    changed = [name for name, value in _changed(one.piece, other.piece).items()
               if tf.as_dtype(value.dtype).is_floating and not _OF_GRADIENTS.search(name)]
    if changed:
        again = trace()
        for name in _changed(one.piece, again.piece):
            raise BrokenRule(f'its constant {name}{place_of(name, again.graph)} changes each time the file is '
                             'executed; give random numbers a fixed seed, as in np.random.default_rng(0)')


def _changed(before, after):
    """Returns the values, by name, of the constants that differ in a second call's piece."""
    values, others = ({node.name: node.attr['value'].tensor for node in piece.definition.node if node.op == 'Const'}
                      for piece in (before, after))
    return {name: value for name, value in others.items() if name in values and value != values[name]}


def _compared(make_up, few, session, half, whole, step, graph):
    suspected: dict[str, str] = {}
    for seed in range(_TRIALS):
        try:
            first, again, second, together, nearby = _trial(make_up, few, session, half, whole, seed, step)
        except tf.errors.OpError as error:  # an operation for GPUs only, or an error that the first step will report
            return [f'it fails on random examples ({reason(error)}), so the towers were not compared with one tower']
        others = [name for name, value in first.averaged.items()
                  if value.tobytes() != again.averaged[name].tobytes()]
        if others:
            return [f'its {others[0]} differs in bits when computed again, so a resumed run ends with different '
                    'bits; use --deterministic or other operations']
        apart = _apart(first, second, together, nearby)
        for name in apart.keys() & whole.scalars:
            raise refusals.not_the_mean(name.partition(':')[0], graph)
        suspected = {name: note for name, note in apart.items() if seed == 0 or name in suspected}
        if not suspected:
            return []
    return list(suspected.values())[:1]


_Computed = collections.namedtuple('_Computed', 'averaged moved')  # the arrays of a `_Tower`


def _trial(make_up, count, session, half, whole, seed, step):
    """Computes the first tower twice, the second tower, and one tower with both batches.

    The last two results are from this tower: before and after a small change of its batch.
    """
    random = np.random.default_rng(seed)
    batch = make_up(random, 2 * count, whole.inputs)
    if half.normalises:  # by numbers; labels may differ
        batch = {name: np.concatenate([value[:count]] * 2) if value.dtype.kind == 'f' and len(value) == 2 * count
                 else value for name, value in batch.items()}
    halves = [{name: value[k * count:(k + 1) * count] if value.ndim else value for name, value in batch.items()}
              for k in (0, 1)]
    initialise(session, random, _NOISE, step)
    of_towers = [_computed(session, half, halves[k]) for k in (0, 0, 1)]
    signs = {name: random.choice(np.array([-1, 1], np.float32), value.shape) for name, value in batch.items()
             if value.dtype.kind == 'f' and value.ndim}
    changed = {name: value * (1 + _NEARBY * signs[name]) if name in signs else value for name, value in batch.items()}
    together, nearby = (_computed(session, whole, given) for given in (batch, changed))
    return *of_towers, together, nearby


def _apart(first, second, together, nearby):
    """Returns notes on the results, by name, that differ between two towers and one tower with both batches."""
    notes = {}
    # The gradient of a bias before a batch normalisation, for example, is a sum that ought to be 0.
    nothing = _NOTHING * max(map(_largest, together.averaged.values()))
    for name, whole in together.averaged.items():
        mean = (first.averaged[name] + second.averaged[name]) / 2
        if not _are_close(mean, whole, nearby.averaged[name], max(_TOLERANCE * _largest(whole), nothing)):
            notes[name] = (
                f'its {name} depends on how examples are divided among towers; use the mean loss over all examples, '
                'not a sum or a mean over a mask, and assign the moving averages of batch normalisation')
    for name, moved_to in first.moved.items():
        if not _are_close(moved_to, together.moved[name], nearby.moved[name], _TOLERANCE_OF_MOVED * _largest(moved_to)):
            notes[name] = (
                f'the value that it assigns to {name} depends on how examples are divided among towers; assign means '
                'over the examples, not sums, counts or the examples themselves')
    return notes


def initialise(session: tf.Session, random: np.random.Generator, noise: float, step: int = 0) -> None:
    """Initialises the variables, and adds noise of a standard deviation to the trained variables.

    `step` is the global step.
    """
    session.run([tf.global_variables_initializer(), tf.tables_initializer()])
    values = session.run({variable.op.name: variable for variable in tf.global_variables()})
    for variable in tf.trainable_variables():
        if variable.dtype.is_floating:
            values[variable.op.name] += noise * random.standard_normal(variable.shape.as_list(), np.float32)
    values[tf.train.get_global_step().op.name] = step
    # A single run, because a session plans each new set of operations separately.
    initialisers = [(variable.initializer, values[variable.op.name]) for variable in tf.global_variables()]
    session.run([operation for operation, _ in initialisers], {
        operation.inputs[1]: value for operation, value in initialisers})


def _computed(session, tower, batch):
    """Computes a tower on a batch."""
    moved()
    given = {tower.inputs[name]: value for name, value in batch.items()}
    return _Computed(*session.run((tower.averaged, tower.moved), {**given, **tower.draws}))


def _are_close(mean, whole, nearby, tolerance):
    return not np.isfinite(mean).all() or (
        _largest(mean - whole) <= max(tolerance, _ROUNDING * _largest(nearby - whole)))


def _largest(values):
    return np.abs(values).max(initial=0)


def compare_evaluation(traced: Traced, seed: int) -> list[str]:
    """Returns notes on logits that are random, or that depend on the rest of the batch, in evaluation.

    Args:
      traced: a network, or a model in mode 'infer', with a batch of two images.
      seed: the seed of the run.
    """
    if notes := refusals.notes_of_outputs(traced.graph, traced.outputs['logits']):
        return notes
    with seeded_graph(seed):
        tf.train.get_or_create_global_step()
        inputs = _placeholders(traced)
        images, = inputs.values()
        found = copy(traced, inputs).outputs['logits']
        examples = np.random.default_rng(0).standard_normal([3, *images.shape[1:]], np.float32)

        def logits(session, *numbers):
            return session.run(found, {images: examples[[*numbers]]})
        try:
            with cpu_session(tf.get_default_graph()) as session:
                initialise(session, np.random.default_rng(0), _NOISE_OF_EVALUATION)
                together = logits(session, 0, 1)
                again = logits(session, 0, 1)
                beside_another = np.stack([logits(session, k, 2)[0] for k in range(2)])
        except tf.errors.OpError:  # an operation for GPUs only, or an error that the first step will report
            return []
    drawn = [node.name for node in traced.operations() if is_draw(node)]
    if drawn and not np.array_equal(again, together):
        return [f'its operation {drawn[0]} draws random numbers in evaluation, so predictions vary from run to run; '
                'use it only if `training` is true']
    is_apart = _largest(beside_another - together) > _OF_LOGITS * _largest(together)  # not if one is infinite
    return [_BY_BATCH] * bool(is_apart)
