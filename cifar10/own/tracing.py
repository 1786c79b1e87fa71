"""Traces a user's tower: calls it in a separate graph and extracts its computation.

The graph looks as its author expects: it has the names, collections, scopes and variables for one device. A `Traced`
holds the operations of a step up to the means over the towers, and the follow-up, which runs once after the means. It
changes no variable: an assignment is a value, which the update of the towers assigns.
"""
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS, with_inputs
from cifar10.own import follow_up, mixed_precision, refusals
from cifar10.own.assignments import Assignments
from cifar10.own.isolated_call import LOSS_SCALE, POSITION, STEP, Call, Tower
from cifar10.own.subgraphs import Piece, Subgraphs, library_of, operation_of
from cifar10.parallel.towers import collected_losses

GRADIENT, STATISTIC, SCALAR = 'gradient', 'statistic', 'scalar'  # the kinds of `Averaged`


class Variable(NamedTuple):
    """A variable of a traced function.

    Attributes:
      name: the name for `tf.get_variable` in a copy.
      shape, dtype, constraint: as `tf.get_variable` takes them.
      trained: whether it is a trainable variable after the function returns.
      handle, initial: the names of its handle and of its initial value in the traced graph.
      is_shared: whether it was created by `tf.get_variable`, so that further functions may share it.
    """
    name: str
    shape: tf.TensorShape
    dtype: tf.DType
    constraint: Callable | None
    trained: bool
    handle: str
    initial: str
    is_shared: bool = True


class Averaged(NamedTuple):
    """A tensor that leaves the towers; the update takes its mean.

    Attributes:
      kind: GRADIENT, STATISTIC or SCALAR.
      values: the names of the tensors of a tower: one, or the values and the indices of a sparse gradient.
      means: the names of the tensors that the follow-up replaces with the mean; none without a follow-up.
      variable: the name of the variable with the gradient or the statistic; '' for a scalar without a variable.
      keep: the `keep` of `MovingStatistic`, for a statistic.
    """
    kind: str
    values: tuple[str, ...]
    means: tuple[str, ...] = ()
    variable: str = ''
    keep: float | None = None


class Traced(NamedTuple):
    """The computation of a tower. All names refer to its graph.

    Attributes:
      graph: the traced graph; its operations know the source lines that created them.
      inputs: the tensors that a copy replaces, by the names of the inputs.
      variables: the variables that the function created, in creation order.
      outputs: the results of a tower by name, in structures of tensors: `scalars`, in training with `total_loss` first;
        for a network also `losses`, the terms of `total_loss` by name; and the `shown` tensors.
      averaged: the tensors that leave the tower; none outside of training.
      piece: the operations of a tower.
      initial: the pieces that compute the initial value of each variable.
      tables, fillers: the piece with the lookup tables, and the names of the operations that fill them.
      after: the follow-up of a model, or None.
      notes: warnings about the code, one phrase each.
      existing: the full names of the variables that a copy shares with the rest of its graph.
    """
    graph: tf.Graph
    inputs: Mapping[str, str]
    variables: tuple[Variable, ...]
    outputs: Mapping[str, Any]
    averaged: tuple[Averaged, ...]
    piece: Piece
    initial: Mapping[str, Piece]
    tables: Piece
    fillers: tuple[str, ...] = ()
    after: follow_up.FollowUp | None = None
    notes: tuple[str, ...] = ()
    existing: frozenset[str] = frozenset()

    def dtype_of(self, name: str) -> tf.DType:
        """Returns the type of an input."""
        return self.graph.get_tensor_by_name(self.inputs[name]).dtype

    def uses(self, name: str) -> bool:
        """Returns whether a copy needs an input."""
        return any(self.inputs[name] in piece.needs for piece in (self.piece, *self.initial.values()))

    def operations(self) -> Iterable[tf.NodeDef]:
        """Yields the operations of a step and of their functions."""
        for piece in (self.piece, *([self.after.piece] if self.after else [])):
            yield from piece.definition.node
            for function in piece.definition.library.function:
                yield from function.node_def


def trace(make: Callable[[Any], Tower], batch: Any, training: bool, seed: int, narrow_to: tf.DType | None = None,
          entry: str = refusals.NETWORK) -> Traced:
    """Calls a function in a separate graph; returns its computation.

    Args:
      make: function of a batch.
      batch: tensors of any graph in any structure, for their types and shapes.
      training: whether to compute gradients and keep assignments.
      seed: the seed of the graph.
      narrow_to: the type for convolutions and matrix products of a function that is called in float32; None: leaves
        them unchanged.
      entry: the entry point, such as `refusals.NETWORK`, for the remedies in messages.

    Raises:
      BrokenRule: several towers cannot compute the function's result.
    """
    with refusals.for_entry(entry):
        call = Call(batch, training, seed)
        tower = call.run(make)
        values = call.values_of_placeholders()
        if any(value is not None for value in values):  # a second call's conditions and shapes depend on the values
            call = Call(batch, training, seed, values)
            tower = call.run(make)
        with call.graph.as_default():
            return (_of_network if tower.train_op is None else _of_model)(call, tower, narrow_to)


def _of_network(call, tower, narrow_to):
    """Returns the Traced of a tower in evaluation, or of a tower that the program's optimizer trains."""
    outputs, updates, statistics = dict(tower.shown, scalars=dict(tower.scalars)), [], []
    if call.training:
        tf.get_collection_ref(tf.GraphKeys.LOSSES)[:] = losses = _losses(call, [*tower.scalars.values()])
        total = tf.add_n(losses, name='total_loss')
        outputs.update(scalars=dict(total_loss=total, **tower.scalars), losses=collected_losses())
        updates = [each if isinstance(each, tf.Operation) else each.op
                   for each in tf.get_collection(tf.GraphKeys.UPDATE_OPS)]
        statistics = tf.get_collection(MOVING_STATISTICS)
    results = [*(each.op for each in (*tf.nest.flatten(outputs), *(each.value for each in statistics))), *updates]
    refusals.refuse_unfed(call, results)
    needed = _needed(results, call.feeds)
    call.leave_out_variables(needed)
    refusals.check_variables(call)
    assignments = Assignments(call.variables, needed)
    averaged, notes = tuple[Averaged, ...](), tower.notes
    if call.training:
        refusals.check_assignments(assignments, needed)
        assignments.collect()
        averaged = (*_gradients(call, total), *_statistics(call))
        needed |= _needed([tf.get_default_graph().get_tensor_by_name(each.values[0]).op for each in averaged],
                          call.feeds)
        notes = (*notes, *refusals.notes_of_network(call, needed))
    return _taken(call, needed, assignments, narrow_to, outputs, averaged)._replace(notes=notes)


def _of_model(call, tower, narrow_to):
    """Returns the Traced of a model, which takes its own steps, with its follow-up."""
    refusals.refuse_unfed(call, [*(each.op for each in tower.scalars.values()), tower.train_op])
    division = follow_up.divide(call, tower)
    assignments = Assignments({**call.variables, call.step.handle.op.name: call.step}, division.towers)
    refusals.check_assignments(assignments, division.towers)
    averaged = [
        *(Averaged(GRADIENT, names_of(each.values), names_of(each.taken), each.variable.op.name)
          for each in division.marks),
        *(Averaged(STATISTIC if tensor.shape.rank else SCALAR, (tensor.name,), (tensor.name,), variable, keep)
          for tensor, variable, keep in division.crossing)]
    outputs = dict(tower.shown, scalars=division.scalars, summaries=division.summaries)
    traced = _taken(call, division.towers, assignments, narrow_to, outputs, averaged, division)
    return traced._replace(after=division.after, notes=(*tower.notes, *refusals.notes_of_model(call, division)))


def names_of(tensors: Iterable[tf.Tensor]) -> tuple[str, ...]:
    """Returns the names of tensors."""
    return tuple(each.name for each in tensors)


def _needed(operations, feeds):
    """Returns operations and all operations that they need, given the feeds of placeholders."""
    fed = {key.op for key in feeds if len(key.op.outputs) == 1}
    return with_inputs(operations, without=fed) | with_inputs([value.op for value in feeds.values()])


def _taken(call, needed, assignments, narrow_to, outputs, averaged, division=None):
    """Returns the Traced of a call; must be called in the graph of the call.

    Args:
      needed: the operations of a tower.
      division: the Division of a model.
    """
    begun = with_inputs(each.initializer for each in call.variables.values())
    refusals.check_operations(needed | begun | (division.once if division else set()),
                              needed if call.training else (), library_of(call.graph))
    left_out = division.left_out if division else ()
    nodes = {node.name: node for node in call.graph.as_graph_def().node}
    assignments.replace(nodes)
    if narrow_to:
        mixed_precision.narrow(nodes, narrow_to)
    inputs = {**call.inputs, POSITION: call.position, STEP: call.step.handle, LOSS_SCALE: call.loss_scale}
    graphs = Subgraphs(call.graph, nodes, call.outside().union(left_out), call.instead(nodes))
    trained = {id(variable) for variable in tf.trainable_variables()}
    variables = tuple(
        Variable(each.op.name, each.shape, each.dtype.base_dtype, each.constraint, id(each) in trained,
                 each.handle.name, each.initial_value.name, each.handle.op.name in call.gotten)
        for each in tf.global_variables() if each.handle.op.name in call.variables)
    names = tf.nest.map_structure(lambda each: each.name, outputs)
    handles_of = {each: {other for other in with_inputs([each]) if 'HashTable' in other.type}
                  for each in tf.get_collection(tf.GraphKeys.TABLE_INITIALIZERS)}
    tables = {each.name: handles for each, handles in handles_of.items() if not handles.isdisjoint(needed)}
    of_tables = [each.outputs[0].name for handles in tables.values() for each in handles]
    handles = [each.handle for each in variables] + [inputs[STEP].name]
    targets = [*tf.nest.flatten(names), *(name for each in averaged for name in each.values)]
    return Traced(
        call.graph, {name: each.name for name, each in inputs.items()}, variables, names, tuple(averaged),
        graphs.piece(targets, handles if call.training else None, map(operation_of, of_tables)),
        {each.name: graphs.piece([each.initial]) for each in variables},
        graphs.piece([*(f'^{name}' for name in tables), *of_tables]), tuple(tables))


def _losses(call, tensors):
    """Returns the losses that count.

    A penalty counts once, whether or not the function added it to a loss. A penalty from a branch that is not taken
    does not count if nothing else uses its variable.
    """
    losses = [tf.convert_to_tensor(loss) for loss in tf.get_collection(tf.GraphKeys.LOSSES)]
    added = with_inputs([loss.op for loss in losses], controls=False)
    used = with_inputs(each.op for each in (*tensors, *losses)) - call.not_taken
    handles = {variable.handle.op for variable in call.variables.values()}
    penalties = [penalty for penalty in tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
                 if penalty.op not in added and not (
                     penalty.op in call.not_taken and handles.isdisjoint(used & with_inputs([penalty.op])))]
    losses += [tf.add_n(penalties, name='regularization_loss')] if penalties else []
    return losses


def _gradients(call, total):
    """Adds the gradients of the trained variables; returns them as Averaged."""
    variables = [variable for variable in tf.trainable_variables() if variable is not call.step]
    # This raises a LookupError if an operation has no gradient.
    found = tf.gradients(total * call.loss_scale, variables, colocate_gradients_with_ops=True)
    refusals.refuse_no_gradient(found)
    # An embedding has sparse gradients.
    dense = [tf.unsorted_segment_sum(each.values, each.indices, each.dense_shape[0])
             if isinstance(each, tf.IndexedSlices) else each for each in found]
    return [Averaged(GRADIENT, (gradient.name,), variable=variable.op.name)
            for variable, gradient in zip(variables, dense) if gradient is not None]


def _statistics(call):
    """Returns the moving statistics of a call as Averaged."""
    statistics = tf.get_collection(MOVING_STATISTICS)
    for each in statistics:
        if not each.value.dtype.is_floating and call.depends_on_inputs(each.value.op):
            raise refusals.integers_of_the_batch(each.variable.op.name, each.value.op.name)
    return [Averaged(STATISTIC, (each.value.name,), variable=each.variable.op.name, keep=each.keep)
            for each in statistics]


def renamed(traced: Traced, graph: tf.Graph) -> Traced:
    """Returns a tower for a graph with existing variables: it shares the variables of `tf.get_variable`.

    Other variables, such as an optimizer's slots, get the names that TensorFlow 1 would give them in that graph.
    """
    existing = frozenset(each.op.name for each in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
                         + graph.get_collection(tf.GraphKeys.LOCAL_VARIABLES))
    names = {each.name: each.name if each.is_shared or each.name not in existing else
             graph.unique_name(each.name, mark_as_used=False) for each in traced.variables}
    after = traced.after and traced.after._replace(changed=tuple(names[each] for each in traced.after.changed))
    return traced._replace(
        variables=tuple(each._replace(name=names[each.name]) for each in traced.variables),
        averaged=tuple(each._replace(variable=names.get(each.variable, '')) for each in traced.averaged),
        initial={names[name]: piece for name, piece in traced.initial.items()}, after=after, existing=existing)
