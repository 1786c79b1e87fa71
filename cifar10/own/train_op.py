"""A whole model as a value: what each tower computes of it, and what its train_op then does once.

What depends on the images is computed by each tower; a gradient is averaged where it leaves `compute_gradients` or
`tf.gradients`; what follows is done once for each copy of the variables. An assignment that depends on the images
without a gradient is a statistic, as in networks.
"""
import collections
import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session, place_of, with_inputs
from cifar10.base.own_files import place_now
from cifar10.own import mixed
from cifar10.own.call import POSITION, STEP, Call, phrase
from cifar10.own.code import BrokenRule
from cifar10.own.pieces import Cutter, Piece
from cifar10.own.traced import (
    DRAWS,
    Traced,
    assignments_of,
    check_operations,
    check_variables,
    refuse_fed_variables,
    variables_of,
)
from cifar10.own.writes import Writes, changes_a_variable, node_of

# The global step before the update and after it, as the operations that follow the gradients take it.
BEFORE, AFTER = (f'{STEP}/_{when}:0' for when in ('before', 'after'))
_LEAVING = 'gradients_leaving'  # the graph collection of `_Leaving`


class Model(NamedTuple):
    """What a model function has returned, as tensors and operations of its graph.

    Attributes:
      loss: a scalar.
      train_op: an operation, or a tensor.
      logits: of the images, if they are known.
    """
    loss: tf.Tensor
    train_op: tf.Operation | tf.Tensor
    logits: tf.Tensor | None


class Averaged(NamedTuple):
    """What the towers compute, and what follows takes the mean of. All are names.

    Attributes:
      values: the tensors of a tower: one, or the values and the indices of a sparse gradient.
      means: those in whose places the mean is taken.
      variable: of which it is the gradient; None for another scalar.
    """
    values: tuple[str, ...]
    means: tuple[str, ...]
    variable: str | None = None


class TrainOp(NamedTuple):
    """What follows the gradients. All names are those of the traced graph.

    Attributes:
      piece: its operations.
      target: what is run, as one of `piece.gives`.
      averaged: what the towers compute for it, in the order of `Traced.outputs`.
      unused: scalars of the towers whose value changes nothing, as of a loss that is only returned.
      changed: the names of the variables that it changes.
      beside: of those that an operation changes together with another one, the name of that.
      summaries: string tensors of `piece.gives`.
      told: phrases about scalars of the towers that the update depends on.
    """
    piece: Piece
    target: str
    averaged: tuple[Averaged, ...]
    unused: tuple[str, ...]
    changed: tuple[str, ...]
    beside: Mapping[str, str]
    summaries: tuple[str, ...]
    told: tuple[str, ...]


class _Leaving(NamedTuple):
    """A gradient that leaves `compute_gradients` or `tf.gradients`: its value, and what the function's author gets.

    Each is a tensor, or the values and the indices of a sparse gradient.
    """
    variable: tf.Variable
    values: list[tf.Tensor]
    taken: list[tf.Tensor]


@contextlib.contextmanager
def marking() -> Iterator[None]:
    """Context in which the current graph notes where gradients of variables leave TensorFlow's functions."""
    compute, gradients = tf.train.Optimizer.compute_gradients, tf.gradients

    def left(gradient, variable):
        if gradient is None or not isinstance(variable, tf2.Variable):
            return gradient
        is_sparse = isinstance(gradient, tf.IndexedSlices)
        values = [gradient.values, gradient.indices] if is_sparse else [tf.convert_to_tensor(gradient)]
        taken = [tf.identity(value, name='gradient_of_the_batch') for value in values]
        tf.add_to_collection(_LEAVING, _Leaving(variable, values, taken))
        return tf.IndexedSlices(*taken, tf.shape(variable)) if is_sparse else taken[0]

    def compute_gradients(optimizer, *arguments, **options):
        pairs = compute(optimizer, *arguments, **options)
        return [(left(gradient, variable), variable) for gradient, variable in pairs]

    def of(ys, xs, *arguments, **options):
        found = gradients(ys, xs, *arguments, **options)
        return [left(*each) for each in zip(found, xs if isinstance(xs, (list, tuple)) else [xs])]

    def refuse(*arguments, **options):
        raise BrokenRule(f'it uses a SyncReplicasOptimizer{place_now()}; leave it out: but in async and local, all '
                         'towers take a step together')
    replicas = tf.train.SyncReplicasOptimizer
    synchronised = replicas.apply_gradients
    tf.train.Optimizer.compute_gradients, tf.gradients, replicas.apply_gradients = compute_gradients, of, refuse
    try:
        yield
    finally:
        tf.train.Optimizer.compute_gradients, tf.gradients, replicas.apply_gradients = compute, gradients, synchronised


class _Flow:
    """What follows what in a graph, where placeholders may be fed tensors of it."""

    def __init__(self, graph: tf.Graph, given: Mapping[tf.Tensor, tf.Tensor]):
        self._by_value, self._by_control = collections.defaultdict(list), collections.defaultdict(list)
        for operation in graph.get_operations():
            for tensor in operation.inputs:
                self._by_value[tensor.op].append(operation)
            for before in operation.control_inputs:
                self._by_control[before].append(operation)
        for key, value in given.items():
            self._by_value[value.op].append(key.op)

    def after(self, sources: Iterable[tf.Operation], stops: Iterable[tf.Operation] = (),
              controls: bool = False) -> set[tf.Operation]:
        """Returns operations with all that are computed from them, but not through `stops`.

        Args:
          controls: whether what only runs after another counts.
        """
        found, pending, stops = set(), list(sources), set(stops)
        while pending:
            operation = pending.pop()
            if operation not in found and operation not in stops:
                found.add(operation)
                pending += self._by_value[operation]
                pending += self._by_control[operation] if controls else []
        return found


def cut(call: Call, model: Model, given: Mapping[tf.Tensor, tf.Tensor], narrow_to: tf.DType | None) -> Traced:
    """Returns a model as a value, with its TrainOp; called in the graph of the call.

    Args:
      given: what placeholders are fed.
      narrow_to: as for `traced.trace`.

    Raises:
      BrokenRule: there is no right answer on several towers.
    """
    flow = _Flow(call.graph, given)
    train_op, loss = _op(model.train_op), model.loss
    needed = with_inputs([train_op, loss.op, *(each.op for each in given.values())])
    leaving = _leaving(call.graph, flow, needed)
    taken = {tensor.op for each in leaving for tensor in each.taken}
    after = flow.after(taken, controls=True) - taken
    images = [each.op for each in (*call.inputs.values(), call.position)]
    of_images = flow.after(images, stops=taken) - after
    while loss.op in after and loss.op.type == 'Identity':  # which only waits for the update
        loss = loss.op.inputs[0]
    refuse_fed_variables(call, given)
    _keep_saved_variables(call, needed)
    summaries = _summaries(call, given)
    late = [each for each in summaries if each.op in after]
    targets = [train_op, *(each.op for each in late)]
    of_images -= _recomputed(flow, targets, of_images, taken)
    crossing = _crossing(targets, of_images, taken)
    _refuse_crossing(crossing)
    follows = with_inputs(targets, without=of_images | taken)
    used = [each for each in crossing if _is_used(flow, each, follows)]
    statistics = [each for each in of_images & needed if changes_a_variable(each)]
    logits = [] if model.logits is None else [model.logits]
    outputs = [loss, *logits, *(tensor for each in leaving for tensor in each.values), *used]
    early = [each for each in summaries if each.op not in after]
    of_towers = with_inputs([*(each.op for each in (*outputs, *early, *given.values())), *statistics])
    _refuse_after_update(of_towers & after)
    writes = Writes(call.variables, of_towers, True, call.not_taken | needed)
    writes.collect()
    writes.refuse_readers()
    once = with_inputs(targets, without=of_images | taken | set(writes.all))
    once |= with_inputs([value.op for key, value in given.items() if key.op in once], without=of_images)
    _refuse_drawn_twice(of_towers & once)
    cutter = _cutter_of_update(call, flow, once, given)
    names = {each.handle.op: each.op.name for each in call.variables.values()}
    changed = {names[tensor.op] for each in once for tensor in each.inputs
               if tensor.op in names and (changes_a_variable(each) or each.type in _WITH_FUNCTIONS)}
    piece = cutter.piece([f'^{train_op.name}', *(each.name for each in late)])
    late = [each.name for each in late]
    update = TrainOp(
        piece, next(each for each in piece.gives if each.partition(':')[0] == train_op.name),
        (*(Averaged(_names(each.values), _names(each.taken), each.variable.op.name) for each in leaving),
         *(Averaged((each.name,), (each.name,)) for each in used)),
        tuple(each.name for each in crossing if all(each is not other for other in used)),
        tuple(sorted(changed)), _beside(once, names), tuple(late), tuple(_told(used)))
    return _traced(call, given, narrow_to, writes, outputs, early, update)


_WITH_FUNCTIONS = 'If', 'While', 'Case', 'PartitionedCall', 'StatefulPartitionedCall'  # types of operations


def _names(tensors):
    return tuple(each.name for each in tensors)


def _op(target):
    return target if isinstance(target, tf.Operation) else target.op


def _leaving(graph, flow, needed):
    """Returns the gradients that the train_op needs: of those that others are computed from, the last."""
    found = [each for each in graph.get_collection(_LEAVING) if any(tensor.op in needed for tensor in each.taken)]
    inner = [each for each in graph.get_collection(_LEAVING) if each.taken[0].graph is not graph]
    if inner:
        taken = inner[0].taken[0]
        raise BrokenRule(f'it takes the gradient of {inner[0].variable.op.name} in a branch or a loop'
                         f'{place_of(taken.op.name, taken.graph)}; take gradients outside of it')
    operations = {each.taken[0].op for each in found}
    last = [each for each in found if operations.isdisjoint(
        flow.after(tensor.op for tensor in each.taken) - {each.taken[0].op})]
    if not last:
        raise BrokenRule('its train_op applies no gradient; compute it by minimize or compute_gradients of a '
                         'tf.train.Optimizer, or by tf.gradients of variables')
    return last


def _keep_saved_variables(call, needed):
    """Leaves out variables that no checkpoint holds, such as those of tf.metrics, unless the train_op needs them."""
    saved = {id(each) for each in tf.global_variables()}
    call.variables = {name: each for name, each in call.variables.items()
                      if id(each) in saved or each.handle.op in needed}
    check_variables(call, averages=True)


def _summaries(call, given):
    """Returns the summaries that the model adds, but for those of variables that no checkpoint holds."""
    unfed = {each.op for each in call.placeholders} - {each.op for each in given}
    found = []
    for each in tf.get_collection(tf.GraphKeys.SUMMARIES):
        operations = with_inputs([each.op])
        unknown = [other for other in operations if other.type == 'VarHandleOp' and other is not call.step.handle.op
                   and other.name not in call.variables]
        if not unknown and unfed.isdisjoint(operations):
            found.append(each)
    return found


def _crossing(targets, of_images, taken):
    """Returns the tensors of the towers, other than gradients, that what follows them uses."""
    found = {}
    for operation in with_inputs(targets, without=of_images | taken):
        found.update((tensor.name, tensor) for tensor in operation.inputs if tensor.op in of_images)
    return [found[name] for name in sorted(found)]


def _is_used(flow, tensor, once):
    """Returns whether what follows the gradients is computed from a tensor, and not only returns it."""
    return any(changes_a_variable(each) or each.type in _WITH_FUNCTIONS or each.type.endswith('Summary')
               for each in flow.after([tensor.op]) & once)


def _recomputed(flow, targets, of_images, taken):
    """Returns the operations on scalars of the towers that are done once more, with the means of these scalars.

    So a rate that follows a loss follows the mean of the loss.
    """
    once = with_inputs(targets, without=of_images | taken)
    found, pending = set(), [each for each in _crossing(targets, of_images, taken) if _is_used(flow, each, once)]
    while pending:
        operation = pending.pop().op
        inputs = [tensor for tensor in operation.inputs if tensor.op in of_images]
        if operation not in found and inputs and all(each.shape.rank == 0 for each in inputs):
            found.add(operation)
            pending += inputs
    return found


def _refuse_crossing(crossing):
    for tensor in crossing:
        if tensor.shape.rank != 0 or not tensor.dtype.is_floating:
            raise BrokenRule(f'its train_op uses {tensor.name}, {phrase(tensor)}, which depends on the images and is '
                             f'no gradient{place_of(tensor.op.name)}; the towers have the mean of float scalars only: '
                             'use the mean over the images, or assign a mean to a variable before the update')


def _beside(once, names):
    """Returns for variables, such as slots, the first of those that an operation takes together with them."""
    first, order = {}, list(names.values())
    for operation in sorted(once, key=lambda each: each.name):
        together = sorted({names[tensor.op] for tensor in operation.inputs if tensor.op in names}, key=order.index)
        for name in together[1:]:
            first.setdefault(name, first.get(together[0], together[0]))
    return first


def _told(tensors):
    """Returns phrases about scalars of the towers that the update uses."""
    return [f'its update uses {tensor.op.name}{place_of(tensor.op.name)}, of which it gets the mean over the towers'
            for tensor in tensors]


def _refuse_after_update(operations):
    for operation in sorted(operations, key=lambda each: each.name)[:1]:
        raise BrokenRule(f'its {operation.name} depends on the images, but comes after the update of variables'
                         f'{place_of(operation.name)}; take all gradients before the first update')


def _refuse_drawn_twice(operations):
    for operation in sorted(operations, key=lambda each: each.name):
        if DRAWS.fullmatch(operation.type):
            raise BrokenRule(f'its {operation.name} is used both for the gradients and for the update'
                             f'{place_of(operation.name)}, where it would draw other numbers; draw twice')


def _cutter_of_update(call, flow, once, given):
    """Returns the Cutter of the operations that follow the gradients."""
    nodes = {node.name: node for node in call.graph.as_graph_def().node}
    everything = set(nodes)
    nodes = {operation.name: nodes[operation.name] for operation in once if operation.type != 'VarHandleOp'}
    _count_outside(call, flow, once, nodes)
    outside = (everything - set(nodes)) | {BEFORE.partition(':')[0], AFTER.partition(':')[0]}
    return Cutter(call.graph, nodes, outside, call.fed_instead(nodes, given), (), (), ())


def _count_outside(call, flow, once, nodes):
    """Takes the count of the global step out of NodeDefs; those that read it get it before or after it is counted."""
    handle = call.step.handle.op
    users = [each for each in once if any(tensor.op is handle for tensor in each.inputs)]
    writes = [each for each in users if changes_a_variable(each)]
    if len(writes) != 1 or not _counts_one(call, writes[0]):
        place = next((place_of(each.name) for each in (*writes, *users)), '')
        raise BrokenRule(f'its train_op does not increment the global step by 1, outside of a tf.cond{place}; give '
                         'apply_gradients or minimize global_step=tf.train.get_global_step()')
    counted = flow.after(writes, controls=True)
    for each in users:
        controls = [f'^{before.name}' for before in each.control_inputs]
        if each is writes[0]:
            nodes[each.name] = tf.NodeDef(name=each.name, op='NoOp', input=dict.fromkeys(
                [*controls, f'^{each.inputs[1].op.name}']))
        elif each.type == 'ReadVariableOp':
            value = AFTER if each in counted else BEFORE
            nodes[each.name] = node_of('Identity', each.name, [value, *controls], tf.int64)
        elif each.type != 'VarIsInitializedOp':
            raise BrokenRule(f'its {each.name} reads the global step in a branch or a loop{place_of(each.name)}; read '
                             'it before, as in step = tf.identity(tf.train.get_global_step())')


def _counts_one(call, write):
    """Returns whether an assignment adds 1 to the global step, whatever that is."""
    value = write.inputs[1]
    operations = with_inputs([value.op], controls=False)
    reads = [each for each in operations if each.type == 'ReadVariableOp' and each.inputs[0].op is call.step.handle.op]
    computing = operations - with_inputs(reads)
    if any(each.type.startswith('Placeholder') or each.op_def.is_stateful for each in computing):
        return False
    definition = tf.GraphDef(library=call.graph.as_graph_def().library)
    for each in computing:
        node = definition.node.add()
        node.CopyFrom(each.node_def)
        node.ClearField('input')
        node.input.extend(tensor.name for tensor in each.inputs)
        node.attr.pop('_class', None)
    with cpu_session() as session:
        step = tf.placeholder(tf.int64, [])
        after, = tf.import_graph_def(definition, {each.outputs[0].name: step for each in reads}, [value.name])
        added = {'AssignAddVariableOp': after, 'AssignVariableOp': after - step}.get(write.type)
        return added is not None and [session.run(added, {step: before}) for before in (0, 7)] == [1, 1]


def _traced(call, given, narrow_to, writes, outputs, summaries, update):
    """Returns the Traced of what the towers compute."""
    nodes = {node.name: node for node in call.graph.as_graph_def().node}
    writes.replace(nodes)
    if narrow_to:
        mixed.narrow(nodes, narrow_to)
    begun = with_inputs(variable.initializer for variable in call.variables.values())
    check_operations(call, with_inputs([each.op for each in outputs]) | begun | {
        call.graph.get_operation_by_name(node.name) for node in update.piece.definition.node})
    assignments = assignments_of(call)
    cutter = Cutter(call.graph, nodes, call.outside(()), call.instead(nodes, given), (), (), ())
    targets = [each.name for each in (*outputs, *summaries)] + [each.value for each in assignments]
    forward, backward = cutter.pieces(targets, [])
    inputs = {**call.inputs, POSITION: call.position, STEP: call.step.handle}
    variables = [each._replace(beside=update.beside.get(each.name)) for each in variables_of(call, cutter)]
    return Traced(
        call.graph, {name: each.name for name, each in inputs.items()}, tuple(variables),
        outputs=tuple(each.name for each in outputs), names=(), assignments=tuple(assignments), activations=(),
        forward=forward, cuts=(), seeds=(), gradients={}, backward=backward, back_cuts=(),
        initial={each.name: cutter.piece([each.initial]) for each in variables}, in_vain=tuple(writes.in_vain),
        summaries=tuple(each.name for each in summaries), train_op=update)
