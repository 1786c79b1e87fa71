"""The follow-up of a model: the part of its train_op that runs once, after the towers' gradients are averaged.

Each tower computes everything that depends on its batch. A gradient is averaged where it leaves `compute_gradients` or
`tf.gradients`. The rest of the train_op runs once for each copy of the variables. If it uses another tensor that
depends on the batch, it gets the mean over the towers.
"""
import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import with_inputs
from cifar10.own import refusals
from cifar10.own.assignments import ASSIGNMENTS, changes_a_variable, node_of
from cifar10.own.gradient_marks import MARKS, Mark
from cifar10.own.isolated_call import STEP, Call, Tower
from cifar10.own.subgraphs import Order, Piece, Subgraphs, library_of, within

_READS = 'VarHandleOp', 'ReadVariableOp'  # types of stateful operations without a side effect
# The inputs of the follow-up for the global step before and after the update.
BEFORE, AFTER = (f'{STEP}/_{when}:0' for when in ('before', 'after'))


class FollowUp(NamedTuple):
    """The operations that run once, after the means. All names refer to the traced graph.

    Attributes:
      piece: its operations.
      targets: the operations to run.
      changed: the names of the changed variables.
      summaries: its summaries, string tensors.
    """
    piece: Piece
    targets: tuple[str, ...]
    changed: tuple[str, ...]
    summaries: tuple[str, ...]


class Division(NamedTuple):
    """A model, divided into the operations of the towers and the operations of the follow-up.

    Attributes:
      scalars: the scalars of the tower, `total_loss` first.
      marks: the gradients that leave the towers.
      crossing: (tensor, name of the assigned variable or '', keep) for every other tensor that leaves the towers.
      towers, once: the operations of a tower, and of the follow-up.
      summaries: the summaries of the towers.
      left_out: the names of operations outside the tower that it may wait for in the model's graph.
      after: the follow-up.
    """
    scalars: Mapping[str, tf.Tensor]
    marks: Sequence[Mark]
    crossing: Sequence[tuple]
    towers: set
    once: set
    summaries: Sequence[tf.Tensor]
    left_out: set
    after: FollowUp


class _Flow:
    """Finds the operations that depend on given operations in a graph whose placeholders may be fed its own tensors."""

    def __init__(self, graph: tf.Graph, feeds: Mapping[tf.Tensor, tf.Tensor]):
        self._by_value, self._by_control = collections.defaultdict(list), collections.defaultdict(list)
        for operation in graph.get_operations():
            for tensor in operation.inputs:
                self._by_value[tensor.op].append(operation)
            for before in operation.control_inputs:
                self._by_control[before].append(operation)
        for key, value in feeds.items():
            self._by_value[value.op].append(key.op)

    def after(self, sources: Iterable[tf.Operation], stops: Iterable[tf.Operation] = (),
              controls: bool = False) -> set[tf.Operation]:
        """Returns operations and all operations computed from them, without paths through `stops`.

        Args:
          controls: whether to follow control inputs, too.
        """
        found, pending, stops = set(), list(sources), set(stops)
        while pending:
            operation = pending.pop()
            if operation not in found and operation not in stops:
                found.add(operation)
                pending += self._by_value[operation]
                pending += self._by_control[operation] if controls else []
        return found


def divide(call: Call, tower: Tower) -> Division:
    """Divides a model into the towers' operations and the follow-up; called in the graph of the call.

    Raises:
      BrokenRule: several towers cannot compute the right answer.
    """
    flow, scalars = _Flow(call.graph, call.feeds), dict(tower.scalars)
    fed = [value.op for value in call.feeds.values()]
    needed = with_inputs([tower.train_op, *(each.op for each in scalars.values()), *fed])
    call.leave_out_variables(needed)
    refusals.check_variables(call)

    marks = _last_marks(call, flow, needed)
    taken = {tensor.op for each in marks for tensor in each.taken}
    changing = {each for each in needed if changes_a_variable(each)} | _calling(call.graph, needed)
    after, late = _afterwards(flow, taken, changing)
    of_batch = flow.after(call.given_operations(), stops=taken) - late - changing
    summaries = _summaries(call, flow)
    early_summaries, late_summaries = ([each for each in summaries if (each.op in late) == is_late]
                                       for is_late in (False, True))

    # Includes stateful operations such as a tf.print of a gradient. The value of the train_op is ignored.
    acting = changing | {each for each in after & needed if each.op_def.is_stateful and each.type not in _READS}
    # A tf.cond acts only if an operation takes its result.
    taking = {each for each in needed if not acting.isdisjoint(tensor.op for tensor in each.inputs)}
    targets = {*(each.op for each in late_summaries), *acting, *taking} - of_batch
    once = with_inputs(targets, without=of_batch | taken)
    once |= with_inputs([value.op for key, value in call.feeds.items() if key.op in once], without=of_batch | taken)
    crossing = _crossing(once, of_batch, taken)

    # For example tf.Assert, tf.print and tf.py_func, whose values nothing needs.
    effects = [each for each in by_name(of_batch & needed) if each.op_def.is_stateful]
    leaving = [*scalars.values(), *early_summaries, *tf.nest.flatten(tower.shown), *(each[0] for each in crossing),
               *(tensor for each in marks for tensor in each.values)]
    towers = _inputs_before([*(each.op for each in leaving), *fed, *effects], after)
    refusals.refuse_late(towers & late)
    if effects:
        with tf.control_dependencies(effects):
            scalars['total_loss'] = tf.identity(scalars['total_loss'], 'waiting')
        towers |= {scalars['total_loss'].op}
    left_out = {each.name for each in after | once if each not in towers}
    return Division(scalars, marks, crossing, towers, once, early_summaries, left_out,
                    _follow_up(call, once, changing & once, targets, late_summaries))


def _last_marks(call, flow, needed):
    """Returns the gradients that the train_op needs; in a chain of gradients, only the last."""
    marks = [each for each in call.graph.get_collection(MARKS) if any(tensor.op in needed for tensor in each.taken)]
    operations = {each.taken[0].op for each in marks}
    last = [each for each in marks if operations.isdisjoint(
        flow.after(tensor.op for tensor in each.taken) - {each.taken[0].op})]
    refusals.refuse_no_gradient(last)
    return last


def _calling(graph, needed):
    """Returns the operations that call a variable-changing function."""
    library = library_of(graph)
    return {each for each in needed if any(changes_a_variable(inner) for inner in within(each.node_def, library))
            } if library else set()


def _afterwards(flow, taken, changing):
    """Returns (operations that run after gradients, operations with values from gradients or changed variables)."""
    after = flow.after(taken, controls=True) - taken
    changed = {tensor.op for each in changing for tensor in each.inputs if tensor.dtype == tf.resource}
    rereading = {each for each in after if not changed.isdisjoint(tensor.op for tensor in each.inputs)}
    return after, flow.after([*taken, *rereading]) - taken | (changing & after)


def _summaries(call, flow):
    """Returns the summaries of a model, without summaries of tf.metrics or of a placeholder that is not fed."""
    known = {call.step.handle.op, *(each.handle.op for each in call.variables.values())}
    unknown = {each.op for each in call.placeholders} - {each.op for each in call.feeds} - call.given_operations()
    unknown |= {each for each in call.graph.get_operations() if each.type == 'VarHandleOp' and each not in known}
    unknown = flow.after(unknown, controls=True)
    return [each for each in tf.get_collection(tf.GraphKeys.SUMMARIES) if each.op not in unknown]


def _crossing(once, of_batch, taken):
    """Returns `Division.crossing`, given the operations of the follow-up."""
    uses = [(tensor, each) for each in by_name(once) for tensor in each.inputs if tensor.op in of_batch]
    refusals.refuse_uses(uses, taken)
    assigned = {each.inputs[1].name: each for _, each in uses if each.type in ASSIGNMENTS}
    found = []
    for name, tensor in {tensor.name: tensor for tensor, _ in uses}.items():
        variable = assigned[name].inputs[0].op.name if name in assigned else ''
        found.append((tensor, variable, 0 if variable and assigned[name].type == 'AssignVariableOp' else None))
    return found


def _inputs_before(operations, after):
    """Returns operations and their inputs, without operations of `after` that are only control inputs."""
    found, pending = set(), list(operations)
    while pending:
        if (operation := pending.pop()) not in found:
            found.add(operation)
            pending += [tensor.op for tensor in operation.inputs]
            pending += [each for each in operation.control_inputs if each not in after]
    return found


def by_name(operations: Iterable[tf.Operation]) -> list[tf.Operation]:
    """Sorts operations in an order that is the same in each process."""
    return sorted(operations, key=lambda each: each.name)


def _follow_up(call, once, changing, targets, late_summaries):
    """Returns the follow-up, given its operations."""
    nodes = {node.name: node for node in call.graph.as_graph_def().node}
    everything = set(nodes)
    nodes = {each.name: nodes[each.name] for each in once if each.type != 'VarHandleOp'}
    using = [each for each in once if any(tensor.dtype == tf.resource for tensor in each.inputs)]
    order = Order(call.graph, using, call.feeds)
    _keep_order(call, once, changing, order, nodes)
    _count_outside(call, once, order, nodes)
    outside = (everything - set(nodes)) | {BEFORE.partition(':')[0], AFTER.partition(':')[0]}
    graphs = Subgraphs(call.graph, nodes, outside, call.fed_instead(nodes))
    names = {each.handle.op: each.op.name for each in call.variables.values()}
    changed = {names[tensor.op] for each in changing for tensor in each.inputs
               if tensor.op in names}
    run = sorted({each.name for each in targets if each.name in nodes and not each.type.endswith('Summary')})
    late = [each.name for each in late_summaries]
    handles = [each.handle.name for each in call.variables.values()]
    piece = graphs.piece([*(f'^{name}' for name in run), *late], handles)
    return FollowUp(piece, tuple(run), tuple(sorted(changed)), tuple(late))


def _keep_order(call, once, changing, order, nodes):
    """Adds the model's order between each change of a variable and the other operations that use it.

    Towers compute the operations between them, so the follow-up alone would not keep that order.
    """
    users = collections.defaultdict(list)
    for each in by_name(once):
        for tensor in each.inputs if each.name in nodes else ():
            if tensor.dtype == tf.resource and tensor.op is not call.step.handle.op:
                users[tensor.op].append(each)
    for change in by_name(changing):
        for each in {each for tensor in change.inputs for each in users[tensor.op]} - {change}:
            if order.is_after(each, change):
                nodes[each.name].input.append(f'^{change.name}')
            elif order.is_after(change, each):
                nodes[change.name].input.append(f'^{each.name}')


def _count_outside(call, once, order, nodes):
    """Removes the global step's increment from NodeDefs: the update increments it once for all copies."""
    step = call.step.handle.op
    users = [each for each in by_name(once) if any(tensor.op is step for tensor in each.inputs)]
    writes = [each for each in users if _counts_one(each, step)]
    for each in users:
        controls = [name for name in nodes[each.name].input if name.startswith('^')]
        if writes == [each]:
            nodes[each.name] = tf.NodeDef(name=each.name, op='NoOp', input=dict.fromkeys(
                [*controls, f'^{each.inputs[1].op.name}']))
        elif each.type == 'ReadVariableOp':
            is_counted = any(order.is_after(each, write) for write in writes)
            nodes[each.name] = node_of('Identity', each.name, [AFTER if is_counted else BEFORE, *controls], tf.int64)
        elif each.type != 'VarIsInitializedOp':
            raise refusals.other_count(each)


def _counts_one(operation, step):
    """Returns whether an operation adds 1 to the global step, as an `assign_add`, or an `assign` of a sum."""
    if operation.type == 'AssignVariableOp':
        value = operation.inputs[1].op
        added = [each for each in value.inputs if step not in with_inputs([each.op])]
        return value.type in ('Add', 'AddV2') and [tf.get_static_value(each) for each in added] == [1]
    return operation.type == 'AssignAddVariableOp' and tf.get_static_value(operation.inputs[1]) == 1
