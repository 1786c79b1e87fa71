"""A whole model as a value: what each tower computes of it, and what its train_op then does once.

What depends on the images is computed by each tower; a gradient is averaged where it leaves `compute_gradients` or
`tf.gradients`; what follows is done once for each copy of the variables. What is assigned without a gradient is done
once, too: where it depends on the images, it is the mean over the towers.
"""
import collections
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import cpu_session, place_of, with_inputs
from cifar10.own.call import STEP, Call, phrase
from cifar10.own.code import BrokenRule
from cifar10.own.leaving import LEAVING
from cifar10.own.pieces import Cutter, Piece, operation_of
from cifar10.own.traced import DRAWS, Traced, check_variables, names_of, refuse_fed_variables, taken_from
from cifar10.own.writes import ASSIGNMENTS, REMEDY, WAYS, Writes, changes_a_variable, node_of, within

# The global step before the update and after it, as the operations that follow the gradients take it.
BEFORE, AFTER = (f'{STEP}/_{when}:0' for when in ('before', 'after'))
# Types of operations that are linear, of products in one of their factors.
_PRODUCTS = 'Mul', 'RealDiv'
_LINEAR = (*_PRODUCTS, 'Identity', 'Add', 'AddV2', 'AddN', 'Sub', 'Neg', 'Cast', 'Reshape')


class Model(NamedTuple):
    """What a model function has returned, as tensors and operations of its graph.

    Attributes:
      loss: a scalar.
      train_op: what is run to take a step.
      logits: of the images, if they are known.
    """
    loss: tf.Tensor
    train_op: tf.Operation
    logits: tf.Tensor | None


class Averaged(NamedTuple):
    """What the towers compute, and what follows takes the mean of. All are names.

    Attributes:
      values: the tensors of a tower: one, or the values and the indices of a sparse gradient.
      means: those in whose places the mean is taken.
      variable: of which it is the gradient, or to which it is assigned; None for another scalar.
      is_gradient: whether it is one.
      keep: where it is assigned, that of `layers.MovingStatistic`, 0 or None.
    """
    values: tuple[str, ...]
    means: tuple[str, ...]
    variable: str | None = None
    is_gradient: bool = False
    keep: float | None = None


class TrainOp(NamedTuple):
    """What follows the gradients. All names are those of the traced graph.

    Attributes:
      piece: its operations.
      targets: what is run, those of `piece.gives`.
      averaged: what the towers compute for it, in the order of `Traced.outputs`.
      unused: scalars of the towers whose value changes nothing, as of a loss that is only returned.
      changed: the names of the variables that it changes.
      beside: of those that an operation changes together with another one, the name of that.
      summaries: string tensors of `piece.gives`.
      told: phrases about scalars of the towers that the update depends on.
    """
    piece: Piece
    targets: tuple[str, ...]
    averaged: tuple[Averaged, ...]
    unused: tuple[str, ...]
    changed: tuple[str, ...]
    beside: Mapping[str, str]
    summaries: tuple[str, ...]
    told: tuple[str, ...]


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


def divide(call: Call, model: Model, given: Mapping[tf.Tensor, tf.Tensor], narrow_to: tf.DType | None) -> Traced:
    """Returns a model as a value, with its TrainOp; called in the graph of the call.

    Args:
      given: what placeholders are fed.
      narrow_to: as for `traced.trace`.

    Raises:
      BrokenRule: there is no right answer on several towers.
    """
    refuse_fed_variables(call, given)
    found = _Cut(call, model, given)
    return found.of_towers(narrow_to, found.update())


class _Cut:
    """A model that is cut into what towers compute, and what is done once.

    Attributes, sets of operations:
      needed: what a step of plain TensorFlow needs.
      taken: where gradients leave.
      after: what comes after that, or waits for it.
      again: that of it which only waits: its values are those from before, and towers may compute it.
      changing: what changes variables.
      of_images: what depends on the images, and is left to the towers.
      once: what is done once.
    """

    def __init__(self, call, model, given):
        self._call, self._given = call, given
        self._flow = _Flow(call.graph, given)
        self._skipped = self._of_metrics([model.train_op, model.loss.op])
        fed = [each.op for each in given.values()]
        self.needed = self._inputs([model.train_op, model.loss.op, *fed])
        self._leaving = self._last_gradients()
        self.taken = {tensor.op for each in self._leaving for tensor in each.taken}
        self.after = self._flow.after(self.taken, controls=True) - self.taken
        self._divide()
        self._keep_saved_variables()
        summaries = self._summaries()
        self._late = [each for each in summaries if each.op in self.after - self.again]
        self._early = [each for each in summaries if each.op not in self.after - self.again]
        self._train_op = model.train_op
        self._targets = [model.train_op, *(each.op for each in self._late), *self.changing]
        self.once = self._done_once()
        self.of_images -= self._recomputed()
        self.once = self._done_once()
        self._crossing = self._check_crossing()
        self._used = [each for each in self._crossing if self._is_used(each)]
        logits = [] if model.logits is None else [model.logits]
        gradients = [tensor for each in self._leaving for tensor in each.values]
        self._outputs = [model.loss, *logits, *gradients, *self._used]
        # Such as tf.Assert, tf.print and tf.py_func, whose values nothing needs.
        self._effects = [each for each in self.of_images & self.needed if each.op_def.is_stateful]
        self._by_towers = self._inputs_before([
            *(each.op for each in (*self._outputs, *self._early)), *fed, *self._effects])
        self._refuse_what_is_in_both()

    def _divide(self):
        """Finds what changes variables, what only waits for that, and what is left to the towers."""
        call, flow = self._call, self._flow
        images = [each.op for each in (*call.inputs.values(), call.position)]
        definition = call.graph.as_graph_def()
        library = {function.signature.name: function for function in definition.library.function}
        calling = {node.name for node in definition.node if library and any(
            changes_a_variable(inner) for inner in within(node, library))}
        self._calling = {each for each in self.needed if each.name in calling}
        self.changing = {each for each in self.needed if changes_a_variable(each) or each in self._calling}
        changed = {tensor.op for each in self.changing for tensor in each.inputs if tensor.dtype == tf.resource}
        late = {each for each in self.after if not changed.isdisjoint(tensor.op for tensor in each.inputs)}
        self.again = self.after - flow.after([*self.taken, *late]) - self.changing
        self.of_images = (flow.after(images, stops=self.taken) - (self.after - self.again) - self.changing
                          - self._skipped)

    def _inputs(self, operations, without=()):
        """Returns operations with all that they need, as `with_inputs` does, but nothing of metrics."""
        return with_inputs(operations, without=self._skipped.union(without))

    def _inputs_before(self, operations):
        """Returns operations with all that they need, but for what they only wait for after gradients have left."""
        found, pending = set(self._skipped), list(operations)
        while pending:
            if (operation := pending.pop()) not in found:
                found.add(operation)
                pending += [tensor.op for tensor in operation.inputs]
                pending += [each for each in operation.control_inputs if each not in self.after]
        return found - self._skipped

    def _of_metrics(self, targets):
        """Returns the operations of variables that no checkpoint holds, if they change nothing else.

        Such are those of tf.metrics, for which the program has an accuracy of its own.
        """
        saved = {id(each) for each in tf.global_variables()}
        variables = self._call.variables.values()
        found = self._flow.after(each.handle.op for each in variables if id(each) not in saved)
        kept = {each.handle.op for each in variables if id(each) in saved} | {self._call.step.handle.op}
        acts = not found.isdisjoint(targets) or any(
            changes_a_variable(each) and each.inputs[0].op in kept for each in found)
        return set() if acts else found

    def _last_gradients(self):
        """Returns the gradients that the train_op needs: of those that others are computed from, the last."""
        graph = self._call.graph
        for each in graph.get_collection(LEAVING):
            if (taken := each.taken[0]).graph is not graph:
                raise BrokenRule(f'it takes the gradient of {each.variable.op.name} in a branch or a loop'
                                 f'{place_of(taken.op.name, taken.graph)}; take gradients outside of it')
        found = [each for each in graph.get_collection(LEAVING)
                 if any(tensor.op in self.needed for tensor in each.taken)]
        operations = {each.taken[0].op for each in found}
        last = [each for each in found if operations.isdisjoint(
            self._flow.after(tensor.op for tensor in each.taken) - {each.taken[0].op})]
        if not last:
            raise BrokenRule('its train_op applies no gradient of a variable that is known; take gradients by minimize '
                             'or compute_gradients of a tf.train.Optimizer, tf.gradients or a tf.GradientTape')
        return last

    def _keep_saved_variables(self):
        """Leaves out variables that no checkpoint holds, unless the train_op needs them, which is refused."""
        call, saved = self._call, {id(each) for each in tf.global_variables()}
        call.variables = {name: each for name, each in call.variables.items()
                          if id(each) in saved or each.handle.op in self.needed}
        check_variables(call, is_model=True)

    def _summaries(self):
        """Returns the summaries that the model adds, but for those of variables that no checkpoint holds."""
        call = self._call
        known = {call.step.handle.op, *(each.handle.op for each in call.variables.values())}
        unknown = {each.op for each in call.placeholders} - {each.op for each in self._given}
        unknown |= {each for each in call.graph.get_operations() if each.type == 'VarHandleOp' and each not in known}
        unknown = self._flow.after(unknown, controls=True)
        summaries = tf.get_collection(tf.GraphKeys.SUMMARIES)
        self._left_out = [each.op.name for each in summaries if each.op in unknown]
        return [each for each in summaries if each.op not in unknown]

    def _done_once(self):
        """Returns what is needed that the towers do not compute."""
        once = self._inputs(self._targets, self.of_images | self.taken)
        fed = [value.op for key, value in self._given.items() if key.op in once]
        return once | self._inputs(fed, self.of_images)

    def _uses(self):
        """Yields (tensor of the towers, operation that is done once and uses it), but for gradients."""
        for operation in _by_name(self.once):
            for tensor in operation.inputs:
                if tensor.op in self.of_images:
                    yield tensor, operation

    def _is_used(self, tensor):
        """Returns whether what is done once is computed from a tensor of the towers, and not only returns it."""
        follows = self._flow.after([tensor.op]) & self.once
        return any(changes_a_variable(each) or each in self._calling or each.type.endswith('Summary')
                   for each in follows)

    def _recomputed(self):
        """Returns the operations on scalars of the towers that are done once more, with the means of these scalars.

        So a rate that follows a loss follows the mean of the loss. What is linear has the mean of what it is computed
        from, and stays.
        """
        found, pending = set(), [tensor.op for tensor, _ in self._uses() if self._is_used(tensor)]
        while pending:
            operation = pending.pop()
            if operation not in found and self._of_scalars(operation) and not self._is_linear(operation):
                found.add(operation)
                pending += self._of_scalars(operation)
        return found

    def _of_scalars(self, operation):
        """Returns what computes the inputs of an operation that depend on the images, if all are scalars, else []."""
        inputs = [tensor for tensor in operation.inputs if tensor.op in self.of_images]
        return [each.op for each in inputs] if all(each.shape.rank == 0 for each in inputs) else []

    def _is_linear(self, operation):
        """Returns whether a scalar is a linear function of what reductions over the images give."""
        before = self._of_scalars(operation)
        is_sum = len(before) <= 1 or operation.type not in _PRODUCTS
        is_inverse = operation.type == 'RealDiv' and operation.inputs[1].op in before
        return operation.outputs[0].dtype.is_floating and (not before or (
            operation.type in _LINEAR and is_sum and not is_inverse and all(map(self._is_linear, before))))

    def _check_crossing(self):
        """Returns the tensors of the towers, other than gradients, that what is done once uses.

        Raises:
          BrokenRule: the mean of one has no meaning.
        """
        found = {}
        all_taken = {tensor.op for each in tf.get_collection(LEAVING) for tensor in each.taken}
        for tensor, operation in self._uses():
            is_assigned = operation.type in ASSIGNMENTS and tensor is operation.inputs[1]
            if not tensor.dtype.is_floating and is_assigned:
                raise BrokenRule(f'the integer variable {operation.inputs[0].op.name} is assigned a value that depends '
                                 f'on the images, which differ between towers{place_of(operation.name)}; make the '
                                 'variable float32')
            has_mean = is_assigned or tensor.op in all_taken or tensor.shape.rank == 0
            if not tensor.dtype.is_floating or not has_mean:
                raise BrokenRule(f'its train_op uses {tensor.name}, {phrase(tensor)}, which depends on the images and '
                                 f'is no gradient{place_of(tensor.op.name)}; the towers have the mean of float scalars '
                                 'only: use the mean over the images, or assign a mean to a variable before the update')
            found[tensor.name] = tensor
        return list(found.values())

    def _refuse_what_is_in_both(self):
        """Raises a BrokenRule if what towers compute has no right answer beside what is done once."""
        for each in _by_name(self._by_towers & self.after - self.again)[:1]:
            raise BrokenRule(f'its {each.name} is needed for gradients, but comes after the update of variables'
                             f'{place_of(each.name)}; take all gradients before the first update')
        for each in _by_name(self._by_towers & self.once):
            if DRAWS.fullmatch(each.type):
                raise BrokenRule(f'its {each.name} is used both for the gradients and for the update'
                                 f'{place_of(each.name)}, where it would draw other numbers; draw twice')
        for each in _by_name(self._by_towers & self.changing):
            if each.type not in ASSIGNMENTS:
                raise BrokenRule(f'its operation {each.name} changes a variable before the gradients'
                                 f'{place_of(each.name)}, but not by {WAYS}; {REMEDY}')

    def update(self) -> TrainOp:
        """Returns what is done once."""
        call, late = self._call, [each.name for each in self._late]
        nodes = {node.name: node for node in call.graph.as_graph_def().node}
        everything = set(nodes)
        nodes = {each.name: nodes[each.name] for each in self.once if each.type != 'VarHandleOp'}
        self._keep_order(nodes)
        self._count_outside(nodes)
        outside = (everything - set(nodes)) | {BEFORE.partition(':')[0], AFTER.partition(':')[0]}
        cutter = Cutter(call.graph, nodes, outside, call.fed_instead(nodes, self._given), (), (), ())
        names = {each.handle.op: each.op.name for each in call.variables.values()}
        changed = {names[tensor.op] for each in self.once for tensor in each.inputs
                   if tensor.op in names and (changes_a_variable(each) or each in self._calling)}
        run = {each.name for each in (self._train_op, *self.changing) if each.name in nodes}
        piece = cutter.piece([*(f'^{name}' for name in sorted(run)), *late])
        used = {id(each) for each in self._used}
        gradients = [Averaged(names_of(each.values), names_of(each.taken), each.variable.op.name, is_gradient=True)
                     for each in self._leaving]
        return TrainOp(
            piece, tuple(each for each in piece.gives if operation_of(each) in run),
            (*gradients, *map(self._averaged, self._used)),
            tuple(each.name for each in self._crossing if id(each) not in used), tuple(sorted(changed)),
            _beside(self.once, names), tuple(late), (*_told(self._used), *self._told_of_summaries()))

    def _told_of_summaries(self):
        return [f'its summary {name}{place_of(name)} is of tf.metrics, or of what nothing feeds, and is left out; '
                'training shows its own accuracy' for name in self._left_out[:1]]

    def _averaged(self, tensor):
        """Returns the Averaged of a tensor other than a gradient."""
        written = [operation for each, operation in self._uses() if each is tensor and operation.type in ASSIGNMENTS]
        if not written:
            return Averaged((tensor.name,), (tensor.name,))
        keep = 0 if written[0].type == 'AssignVariableOp' else None
        return Averaged((tensor.name,), (tensor.name,), written[0].inputs[0].op.name, keep=keep)

    def _keep_order(self, nodes):
        """Adds to NodeDefs the order that towers leave out, between a change of a variable and others that use it."""
        users = collections.defaultdict(set)
        for each in self.once:
            for tensor in each.inputs if each.name in nodes else ():
                if tensor.dtype == tf.resource:
                    users[tensor.op].add(each)
        for change in _by_name(self.changing & self.once & self.after):
            for each in _by_name(set().union(*(users[tensor.op] for tensor in change.inputs)) & self._by_towers):
                nodes[change.name].input.append(f'^{each.name}')  # a value from before the gradients
        waits = self.again & self._by_towers  # so what is done once may have lost its order
        for change in _by_name(self.changing & self.once if waits else self.changing & self.once - self.after):
            others = set().union(*(users[tensor.op] for tensor in change.inputs)) - {change}
            later = self._flow.after([change], controls=True) if others else ()
            for each in _by_name(others):
                if each in later:
                    nodes[each.name].input.append(f'^{change.name}')
                elif change in self._flow.after([each], controls=True):
                    nodes[change.name].input.append(f'^{each.name}')

    def _count_outside(self, nodes):
        """Takes the count of the global step out of NodeDefs; what reads it gets it before or after it is counted."""
        step = self._call.step.handle.op
        users = [each for each in self.once if any(tensor.op is step for tensor in each.inputs)]
        writes = [each for each in users if changes_a_variable(each)]
        if len(writes) != 1 or not _counts_one(self._call, writes[0]):
            place = next((place_of(each.name) for each in (*writes, *users)), '')
            raise BrokenRule(f'its train_op does not increment the global step by 1, outside of a tf.cond{place}; give '
                             'apply_gradients or minimize global_step=tf.train.get_global_step()')
        counted = self._flow.after(writes, controls=True)
        for each in users:
            controls = [name for name in nodes[each.name].input if name.startswith('^')]
            if each is writes[0]:
                nodes[each.name] = tf.NodeDef(name=each.name, op='NoOp', input=dict.fromkeys(
                    [*controls, f'^{each.inputs[1].op.name}']))
            elif each.type == 'ReadVariableOp':
                value = AFTER if each in counted else BEFORE
                nodes[each.name] = node_of('Identity', each.name, [value, *controls], tf.int64)
            elif each.type != 'VarIsInitializedOp':
                raise BrokenRule(f'its {each.name} reads the global step in a branch or a loop{place_of(each.name)}; '
                                 'read it before, as in step = tf.identity(tf.train.get_global_step())')

    def of_towers(self, narrow_to, update: TrainOp) -> Traced:
        """Returns what each tower computes, as a Traced with its TrainOp."""
        call = self._call
        counted = {**call.variables, call.step.handle.op.name: call.step}
        writes = Writes(counted, self._by_towers, False, call.not_taken | self.needed)
        writes.refuse_readers()
        call.leave_out_cuts(())  # a tower of a model is on one device
        loss, *others = self._outputs
        if self._effects:
            with tf.control_dependencies(_by_name(self._effects)):
                loss = tf.identity(loss, 'waiting')
        traced = taken_from(
            call, self._by_towers | self.once, writes, self._given, narrow_to,
            {each.name for each in (self._skipped | self.after) - self._by_towers},
            outputs=names_of([loss, *others]), summaries=names_of(self._early), train_op=update)
        return traced._replace(variables=tuple(
            each._replace(beside=update.beside.get(each.name)) for each in traced.variables))


def _by_name(operations):
    """Returns operations in an order that is the same in each process."""
    return sorted(operations, key=lambda each: each.name)


def _beside(once, names):
    """Returns for variables, such as slots, the first of those that an operation takes together with them."""
    first, order = {}, list(names.values())
    for operation in _by_name(once):
        together = sorted({names[tensor.op] for tensor in operation.inputs if tensor.op in names}, key=order.index)
        for name in together[1:]:
            first.setdefault(name, first.get(together[0], together[0]))
    return first


def _told(tensors):
    """Returns phrases about scalars of the towers that the update uses."""
    return [f'its update uses {tensor.op.name}{place_of(tensor.op.name)}, of which it gets the mean over the towers'
            for tensor in tensors if tensor.shape.rank == 0]


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
