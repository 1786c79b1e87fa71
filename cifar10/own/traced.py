"""A user's function as a value: it is called in a graph of its own, and all that it computes is taken from there.

There everything is as its author saw it: names, collections, scopes and variables are those of one device. A `Traced`
has the operations that its results need, with the gradients of its variables, as pieces that `copied` adds to a tower.
It changes no variable: an assignment is a value, which the update of the towers assigns.
"""
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE, EXAMPLES_SEEN, MOVING_STATISTICS, place_of, with_inputs
from cifar10.own import mixed
from cifar10.own.call import POSITION, STEP, Call, fed, phrase
from cifar10.own.code import BrokenRule
from cifar10.own.digests import Digests, digest
from cifar10.own.pieces import Cut, Cutter, Piece, operation_of
from cifar10.own.writes import REMEDY, WAYS, Writes, within

# Types of operations whose random numbers depend on what the process has drawn before.
DRAWS = re.compile(
    r'Random(Crop|Gamma|Poisson|Shuffle|StandardNormal|Uniform|UniformInt)(V2)?|(Parameterized)?TruncatedNormal'
    r'|Stateful(Random|Standard|Truncated|Uniform)\w*|Rng\w*Skip|Multinomial|\w*CandidateSampler'
    r'|SampleDistortedBoundingBox(V2)?')
# Types of operations that wait for others, or for initialisers, which no tower runs.
_SOURCES = re.compile(r'\w*(Queue|Reader|HashTable|LookupTable|Iterator|Unstage|Barrier)\w*')
_TOTAL = re.compile(r'(^|/)total_loss(_\d+)?$')  # what `tf.losses.get_total_loss` calls its sum
_SUMS = 'Add', 'AddV2', 'AddN', 'Identity'  # types of operations that are sums
_FEED = ('beside its result, let the function return what the placeholder is fed: return result, {placeholder: '
         'value}')


class Variable(NamedTuple):
    """A variable of a traced function.

    Attributes:
      name: with which a tower gets it from `tf.get_variable`.
      shape, dtype, constraint: as `tf.get_variable` takes them.
      trained: whether it is among the trainable variables once the function has returned.
      part: the number of the part of the network that has made it.
      handle, initial: the names of its handle and of its initial value in the traced graph.
      beside: the name of the variable whose server has it too, because one operation changes both; or None.
    """
    name: str
    shape: tf.TensorShape
    dtype: tf.DType
    constraint: Callable | None
    trained: bool
    part: int
    handle: str
    initial: str
    beside: str | None = None


class Assignment(NamedTuple):
    """What an update assigns: `keep` is that of `layers.MovingStatistic`, the value a tensor of the traced graph."""
    variable: str
    value: str
    keep: float | None


class Traced(NamedTuple):
    """What a function computes. All names are those of tensors in its graph.

    Attributes:
      graph: in which the function was called; its operations know the lines that have made them.
      inputs: what a copy is given, by the names of the inputs.
      variables: what the function has made, in this order.
      outputs: what it returns, and then its losses; gradients flow through them. Of a whole model: its loss, logits,
        gradients and other scalars; there is no `backward`.
      names: of the losses.
      assignments: what it assigns, in this order; none outside of training.
      activations: floats that it has collected as activations.
      forward, cuts: the pieces that compute all of these, in order, and where they are cut.
      output_gradients: those of the outputs, which a copy is given.
      gradients: those of the variables and of the inputs that have any, by their names.
      backward, back_cuts: the pieces that compute the gradients, in order, and where they are cut.
      initial: for each variable the piece that computes its initial value.
      in_vain: the names of operations that assign, and that nothing needs.
      unfed: the names of placeholders that keep their defaults.
      known: for each placeholder what it is fed, if that is known without the graph.
      narrowed: whether it was written in float32, and computes in another type.
      summaries: string tensors that a whole model has collected as summaries.
      train_op: the `train_op.TrainOp` of a whole model, which has applied its gradients itself; else None.
    """
    graph: tf.Graph
    inputs: Mapping[str, str]
    variables: tuple[Variable, ...] = ()
    outputs: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    assignments: tuple[Assignment, ...] = ()
    activations: tuple[str, ...] = ()
    forward: tuple[Piece, ...] = ()
    cuts: tuple[Cut, ...] = ()
    output_gradients: tuple[str, ...] = ()
    gradients: Mapping[str, str] = types.MappingProxyType({})
    backward: tuple[Piece, ...] = ()
    back_cuts: tuple[Cut, ...] = ()
    initial: Mapping[str, Piece] = types.MappingProxyType({})
    in_vain: tuple[str, ...] = ()
    unfed: tuple[str, ...] = ()
    known: tuple = ()
    narrowed: bool = False
    summaries: tuple[str, ...] = ()
    train_op: Any = None

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """What a step needs."""
        return (*self.forward, *self.backward, *([self.train_op.piece] if self.train_op else []))

    @property
    def library(self) -> Any:
        """The functions that operations call; a piece in which none does has none."""
        return max((piece.definition.library for piece in self.pieces), key=lambda each: len(each.function))

    def type_of(self, name: str) -> tf.DType:
        return self.graph.get_tensor_by_name(self.inputs[name]).dtype

    def operations(self) -> Iterator[tf.NodeDef]:
        """Yields the operations that a step needs, and those of their functions."""
        for piece in self.pieces:
            yield from piece.definition.node
        for function in self.library.function:
            yield from function.node_def

    def described(self) -> list[tuple[str, str]]:
        """Returns (name, digest) of each operation, variable and assignment; digests are the same in each process."""
        digests, nodes, known = Digests(self.library), [], {}
        for piece in self.pieces:
            needed = map(operation_of, piece.needs)
            found = digests.of(piece.definition.node, {name: known.get(name, name) for name in needed})
            nodes += found.items()
            known = {**found, **known}
        kept = [(each.name, digest(each.name, each.shape, each.dtype, each.trained and bool(self.gradients)))
                for each in self.variables]
        assigned = [(each.variable, known.get(operation_of(each.value)), each.keep) for each in self.assignments]
        return nodes + kept + [(each[0], digest(*each)) for each in assigned]


def trace(function: Callable, inputs: Mapping[str, tuple], training: bool, seed: int,
          differentiable: Sequence[str] = (), check: Callable = lambda tensor: None,
          narrow_to: tf.DType | None = None, known: Sequence[Any] = (), cut: Callable | None = None) -> Traced:
    """Calls a function in a graph of its own; returns what it computes.

    Args:
      function: of the inputs, tensors; returns a tensor or a list of tensors, or (these, {placeholder: value}).
      inputs: (type, shape) of each input, by its name.
      training: whether assignments count and gradients are computed.
      seed: of the graph.
      differentiable: the inputs that have gradients.
      check: is called with what the function returned, in its graph; raises a BrokenRule if it is something else.
      narrow_to: the type that convolutions and matrix products compute in where the function computes in float32; None:
        they stay as they are.
      known: what is probably fed to placeholders, the `known` of another Traced.
      cut: `train_op.divide` where the function returns a `train_op.Model`.

    Raises:
      BrokenRule: several towers cannot compute what the function computes.
    """
    found = Call(inputs, training, seed, known)
    result, given = found.run(function)
    with found.graph.as_default():
        known = found.known(result, given)
    if not found.follows_from(known):  # what is known then counts in the conditions and shapes of another call
        found = Call(inputs, training, seed, known)
        result, given = found.run(function)
    with found.graph.as_default():
        given = {key: fed(key, value) for key, value in given.items()}
        _check_placeholders(found, tf.nest.flatten(result), given, training and not cut)
        check(result)
        if cut:
            value = cut(found, result, given, narrow_to)
        else:
            tensors = [tf.cast(each, tf.float32) for each in tf.nest.flatten(result)]
            value = _value(found, tensors, given, training, differentiable, narrow_to)
        return value._replace(
            unfed=tuple(found.unfed), known=tuple(known), narrowed=narrow_to is not None)


def _value(call, tensors, given, training, differentiable, narrow_to):
    """Returns the Traced of a call, in whose graph it is called."""
    losses = _losses(call, tensors) if training else []
    updates = [_op(update) for update in tf.get_collection(tf.GraphKeys.UPDATE_OPS)] if training else []
    statistics = tf.get_collection(MOVING_STATISTICS) if training else []
    refuse_fed_variables(call, given)
    results = [*tensors, *losses, *(each.value for each in statistics), *given.values()]
    needed = with_inputs([*(each.op for each in results), *updates], without=_fed_operations(given))
    _leave_out_variables(call, needed, training)
    check_variables(call)
    call.leave_out_cuts(needed)
    writes = Writes(call.variables, needed, training, call.not_taken)
    if training:
        _refuse_other_updates(updates, writes)
        writes.collect()
    writes.refuse_readers()
    outputs = [*tensors, *losses]
    output_gradients, gradients = _gradients(call, outputs, differentiable) if training else ([], {})
    activations = [each for each in tf.get_collection(tf.GraphKeys.ACTIVATIONS) if training and isinstance(
        each, tf.Tensor) and each.dtype.is_floating and each.shape.rank != 0]
    return taken_from(
        call, needed, writes, given, narrow_to, names=tuple(loss.op.name for loss in losses),
        outputs=names_of(outputs), assignments=_assignments(call) if training else (),
        activations=names_of(activations), output_gradients=tuple(output_gradients), gradients=gradients)


def taken_from(call: Call, needed: set[tf.Operation], writes: Writes, given: Mapping[tf.Tensor, tf.Tensor],
               narrow_to: tf.DType | None, left_out: Collection[str] = (), **results: Any) -> Traced:
    """Returns what a call has computed, cut into pieces, in whose graph it is called.

    Args:
      needed: the operations of a step.
      writes: what becomes a value.
      given: what placeholders are fed.
      narrow_to: as for `trace`.
      left_out: the names of operations that no piece has.
      results: attributes of the Traced, such as `outputs`.
    """
    nodes = {node.name: node for node in call.graph.as_graph_def().node}
    writes.replace(nodes)
    if narrow_to:
        mixed.narrow(nodes, narrow_to)
    _check_operations(call, needed | with_inputs(variable.initializer for variable in call.variables.values()))
    inputs = {**call.inputs, POSITION: call.position, STEP: call.step.handle}
    value = Traced(call.graph, {name: each.name for name, each in inputs.items()}, cuts=tuple(call.cuts),
                   back_cuts=tuple(call.back_cuts), in_vain=tuple(writes.in_vain), **results)
    cutter = Cutter(call.graph, nodes, call.outside(value.output_gradients).union(left_out), call.instead(nodes, given),
                    call.cuts, call.starts, call.back_cuts)
    targets = [*value.outputs, *(each.value for each in value.assignments), *value.activations, *value.summaries]
    forward, backward = cutter.pieces(targets, list(value.gradients.values()))
    variables = _variables(call, cutter)
    return value._replace(variables=variables, forward=forward, backward=backward,
                          initial={each.name: cutter.piece([each.initial]) for each in variables})


def names_of(tensors: Iterable[tf.Tensor]) -> tuple[str, ...]:
    """Returns the names of tensors."""
    return tuple(each.name for each in tensors)


def _leave_out_variables(call, needed, training):
    """Leaves out what evaluation does not need, and in training what only an optimizer uses that the function has made.

    Nothing takes the steps of such an optimizer.
    """
    steps = with_inputs(each for each in call.graph.get_operations() if each.type.startswith('ResourceApply'))
    trained = {each.handle.op for each in tf.trainable_variables()}
    kept = [each for each in call.variables.values() if each.handle.op in needed or training and (
        each.handle.op in trained or each.handle.op not in steps)]
    begun = with_inputs(each.initializer for each in kept)  # with the variables that others begin with
    call.variables = {each.handle.op.name: each for each in call.variables.values() if each.handle.op in begun}


def _fed_operations(given):
    """Returns the operations that nothing needs because all that they give is fed."""
    return {key.op for key in given if len(key.op.outputs) == 1}


def _check_placeholders(call, results, given, training):
    """Raises a BrokenRule if what counts needs a placeholder that nothing feeds."""
    inputs, fed_here = {each.op for each in (*call.inputs.values(), call.position)}, _fed_operations(given)
    begun = [variable.initializer for variable in call.variables.values()]
    losses, updates = (tf.get_collection(key) if training else [] for key in (
        tf.GraphKeys.LOSSES, tf.GraphKeys.UPDATE_OPS))
    for entry in [*results, *losses, *updates, *begun, *given.values()]:
        if not isinstance(entry, (tf.Tensor, tf.Operation)):
            continue  # which is refused elsewhere
        unfed = [operation.name for operation in with_inputs([_op(entry)], without=fed_here)
                 if operation.type == 'Placeholder' and operation not in inputs]
        for name in sorted(unfed)[:1]:
            if any(entry is loss for loss in losses):  # labels, perhaps
                raise BrokenRule(f'its loss {entry.op.name} needs the placeholder {name}, which nothing feeds'
                                 f'{place_of(name)}; leave the loss out, or out of tf.GraphKeys.LOSSES: training adds '
                                 'that of --loss')
            raise BrokenRule(f'it makes the placeholder {name}, which nothing feeds{place_of(name)}; {_FEED}')


def refuse_fed_variables(call: Call, given: Mapping[tf.Tensor, tf.Tensor]) -> None:
    """Raises a BrokenRule if a placeholder is fed what depends on a variable: no gradient would flow through it."""
    for key, value in given.items():
        for handle in sorted({operation.name for operation in with_inputs([value.op])} & call.variables.keys()):
            raise BrokenRule(f'it feeds {key.name} a value that depends on the variable {handle}'
                             f'{place_of(key.op.name)}; use that value itself, in the place of the placeholder')


def _assignments(call):
    """Returns the moving statistics of a call."""
    statistics = tf.get_collection(MOVING_STATISTICS)
    for each in statistics:
        if not each.value.dtype.is_floating and call.depends_on_inputs(each.value.op):
            raise BrokenRule(f'the integer variable {each.variable.op.name} is assigned a value that depends on the '
                             'images, which differ between towers; make the variable float32')
    return tuple(Assignment(each.variable.op.name, each.value.name, each.keep) for each in statistics)


def _variables(call, cutter):
    """Returns the variables of a call, in the order in which they were made."""
    trained = {id(variable) for variable in tf.trainable_variables()}
    return tuple(
        Variable(each.op.name, each.shape, each.dtype.base_dtype, each.constraint, id(each) in trained,
                 cutter.part(each.handle.op.name), each.handle.name, each.initial_value.name)
        for each in tf.global_variables() if each.handle.op.name in call.variables)


def _gradients(call, outputs, differentiable):
    """Adds the gradients; returns (the names of those of the outputs, {variable or input: its gradient})."""
    given = [tf.placeholder(each.dtype, each.shape, 'gradient') for each in outputs]
    variables = [variable for variable in tf.trainable_variables() if variable is not call.step]
    inputs = [call.inputs[name] for name in differentiable]
    call.is_handing_back = True
    # This raises a LookupError if an operation has no gradient.
    found = tf.gradients(outputs, [*variables, *inputs], given, colocate_gradients_with_ops=True)
    # An embedding has sparse gradients.
    values = [tf.unsorted_segment_sum(each.values, each.indices, each.dense_shape[0])
              if isinstance(each, tf.IndexedSlices) else each for each in found]
    names = [*(variable.op.name for variable in variables), *differentiable]
    return [each.name for each in given], {name: each.name for name, each in zip(names, values) if each is not None}


def _losses(call, tensors):
    """Returns the losses of a call that returned some tensors, with what counts of its penalties.

    A penalty counts once, whether or not the function has added it to a loss; but not where it was made in a branch
    that is not taken, for a variable that nothing else uses.
    """
    losses = tf.get_collection(tf.GraphKeys.LOSSES)
    for loss in losses:
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            raise BrokenRule(f'it adds {phrase(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars')
    # `tf.losses.get_total_loss` is the sum of the others.
    totals = [loss.op for loss in losses if _TOTAL.search(loss.op.name) and loss.op.type in _SUMS]
    summed = {tensor.op for total in totals for tensor in total.inputs}
    losses = [loss for loss in losses if loss.op not in summed]
    added = with_inputs([loss.op for loss in losses], controls=False)
    used = with_inputs(each.op for each in (*tensors, *losses)) - call.not_taken
    handles = {variable.handle.op for variable in call.variables.values()}
    others = [penalty for penalty in tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
              if penalty.op not in added and not (
                  penalty.op in call.not_taken and handles.isdisjoint(used & with_inputs([penalty.op])))]
    return [*losses, tf.add_n(others, name='regularization_loss')] if others else losses


def _refuse_other_updates(updates, writes):
    """Raises a BrokenRule if something in the collection UPDATE_OPS assigns nothing."""
    for update in updates:
        needed = with_inputs([update])
        if needed.isdisjoint(writes.all) and any(operation.type != 'NoOp' for operation in needed):
            raise BrokenRule(f'it adds {update.name} to the collection UPDATE_OPS{place_of(update.name)}, which is not '
                             f'{WAYS}; {REMEDY}')


def check_variables(call: Call, is_model: bool = False) -> None:
    """Raises a BrokenRule if a variable is not saved, cannot be trained, or begins with what does not exist yet.

    Args:
      is_model: whether it keeps its own moving averages, and says itself what its gradients are of.
    """
    saved = {variable.handle.op.name for variable in tf.global_variables()}
    kept = set() if is_model else {variable.op.name + AVERAGE for variable in tf.trainable_variables()}
    for handle, variable in call.variables.items():
        name, dtype = variable.op.name, variable.dtype.base_dtype
        if name == EXAMPLES_SEEN:
            raise BrokenRule(f'training has a variable of the name {name}{place_of(name)}; give yours another one')
        if handle not in saved:
            raise BrokenRule(f'the variable {name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so it is '
                             f'neither initialised nor saved{place_of(name)}; leave out collections=')
        if call.depends_on_inputs(variable.initializer):
            raise BrokenRule(f'the initial value of the variable {name} depends on the images, which do not exist yet'
                             f'{place_of(name)}; use a constant')
        if name in kept:
            raise BrokenRule(f'it keeps a moving average of the variable {name.removesuffix(AVERAGE)}, and so does '
                             f'training, under the same name{place_of(handle)}; leave it out and use '
                             '--moving_averages=true, or give tf.train.ExponentialMovingAverage another name=')
        if dtype == tf.string:
            raise BrokenRule(f'the variable {name} holds text, for which a checkpoint has no checksum{place_of(name)}; '
                             'keep text in variables of Python')
        if variable.trainable and dtype != tf.float32 and not is_model:
            raise BrokenRule(f'the variable {name} is not float32, as all trainable variables must be{place_of(name)}; '
                             'make it float32 and cast its value, or make it with trainable=False')


def _check_operations(call, needed):
    """Raises a BrokenRule if an operation waits for what nothing starts."""
    library = {function.signature.name: function for function in call.graph.as_graph_def().library.function}
    for operation in sorted(needed, key=lambda each: each.name):
        inner = within(operation.node_def, library) if library else ()
        for kind in [operation.type, *(each.op for each in inner)]:
            if _SOURCES.fullmatch(kind):
                raise BrokenRule(f'its operation {operation.name} is of type {kind}, which nothing starts or fills'
                                 f'{place_of(operation.name)}; use the images that the function is given, and for '
                                 'a table tf.gather from a constant')


def _op(update):
    return update if isinstance(update, tf.Operation) else update.op
