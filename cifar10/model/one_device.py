"""A network function as people write it for one device, in terms that several towers share.

Besides logits, a network of TensorFlow 1 leaves the penalties of its regularizers in one collection, the assignments
that follow a step in another, and makes variables by `tf.Variable`. Here penalties become losses of the tower,
assignments become moving statistics, which the update averages over the towers, and each variable comes from
`tf.get_variable`, by which towers share it.
"""
import collections
import contextlib
import contextvars
import functools
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import with_inputs
from cifar10.base.own_code import BrokenRule, place_now, place_of
from cifar10.model.layers import add_assignment

_ASSIGNMENTS = 'assign', 'assign_add', 'assign_sub'
# The graph collection of what variables would be after assignments that nothing waits for.
IN_VAIN = 'assigned_in_vain'
# Types of operations that change a variable.
WRITES = re.compile(r'Assign\w*VariableOp|Resource(?!Gather)\w+')
_WAYS = 'assign, assign_add or assign_sub outside of a tf.cond'
_REMEDY = 'leave it out, or use cifar10.model.add_moving_statistic(variable, value, keep)'
_TOTAL = re.compile(r'(^|/)total_loss(_\d+)?$')  # what `tf.losses.get_total_loss` calls its sum
_SUMS = 'Add', 'AddV2', 'AddN', 'Identity'  # types of operations that are sums
_COND = tf.cond
_building = []  # has an entry for each function that is running, in whatever thread
_current = contextvars.ContextVar('_current', default=None)  # the OneDevice whose function is running in this thread


def _assign(variable, method, *args, **options):
    """Stands in for an assignment to a variable, for as long as a function is running."""
    call = _current.get()
    if call is None or tf.get_default_graph() is not call.graph:  # nothing is handed out of a branch of a tf.cond
        return getattr(type(variable), method)(variable, *args, **options)
    return call.assign(variable, method, *args, **options)


def _collection(graph, key, scope=None):
    """Stands in for `Graph.get_collection`: the names that a scope is compared with are those within the tower."""
    call, found = _current.get(), type(graph).get_collection(graph, key, scope)
    if scope is None or call is None or call.graph is not graph:
        return found
    entries = type(graph).get_collection(graph, key)
    return [entry for entry in entries if call.is_within(getattr(entry, 'name', ''), scope)]


def _cond(pred, true_fn=None, false_fn=None, strict=False, name=None, fn1=None, fn2=None):
    """Stands in for `tf.cond`: where the condition is known, only that branch counts.

    Both are built, because either may make the variables that the other reuses. As in TensorFlow 1, the only element of
    a list is returned alone.
    """
    call, chosen = _current.get(), tf.get_static_value(pred) if tf.is_tensor(pred) else pred
    branches = true_fn or fn1, false_fn or fn2
    if call is None or chosen is None or tf.get_default_graph() is not call.graph:
        result = _COND(pred, *branches, strict, name)
    else:
        result = call.choose(chosen, *branches)
    is_alone = call and not strict and isinstance(result, (list, tuple)) and len(result) == 1
    return result[0] if is_alone else result


@contextlib.contextmanager
def _static_conds():
    """Context in which `_cond` stands in for `tf.cond`; the replicas of a strategy are in it together."""
    _building.append(None)
    tf.cond = _cond
    try:
        yield
    finally:
        _building.pop()
        if not _building:
            tf.cond = _COND


class _Assignment(NamedTuple):
    """An assignment of the function: a value that becomes the variable's, or is added to it; what it is `after` it."""
    variable: tf.Variable
    value: tf.Tensor
    is_change: bool
    after: tf.Tensor


class OneDevice:
    """A call of a network function that was written for one device.

    Attributes:
      graph: that the function builds.
    """

    def __init__(self):
        self.graph = tf.get_default_graph()
        self._outer = tf.get_variable_scope()
        scope = self.graph.get_name_scope()
        self._scope = f'{scope}/' if scope else ''  # begins the names of operations here
        self._before = {variable.op.name for variable in tf.global_variables()}
        self._variables = {}  # by their names in the network; those that this call has got
        self._by_tf_variable = set()  # names of those that `tf.Variable` has made
        self._of_copy = ''  # what names of variables have here, but not in the first copy, such as 'replica_1/'
        self._is_getting = False
        self._own_reads = set()  # operations by which assignments have read what they change
        self._assigned = []  # an _Assignment each

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Context in which the function is called.

        It finds a scope in which nothing is reused, in later towers too: `_get` shares the variables.
        """
        outer = self._outer
        scope = tf.VariableScope(
            False, outer.name, outer.initializer, outer.regularizer, outer.caching_device, outer.partitioner,
            outer.custom_getter, outer.original_name_scope, outer.dtype, outer.use_resource, outer.constraint)
        with tf.variable_scope(scope, custom_getter=self._get, auxiliary_name_scope=False) as self._root, \
                tf.variable_creator_scope(self._create), _static_conds():
            token = _current.set(self)
            self.graph.get_collection = functools.partial(_collection, self.graph)
            try:
                yield
            finally:
                _current.reset(token)

    def _get(self, getter, name, *args, regularizer=None, **options):
        """Returns what `tf.get_variable` does; in each tower its regularizer counts, not only where it is made."""
        # Other variables, and layers that are given the name of a scope, are named after what has the tower's scope.
        name = name.replace(self._of_copy, '').lstrip('/')  # in the scope ''
        before, scope, of_tensor = name.partition(self._scope) if self._scope else (name, '', '')
        if scope and self._has_operation(scope + of_tensor.rstrip('/').rpartition('/')[0]):
            name = before + of_tensor
        if name in self._by_tf_variable:
            raise BrokenRule(f'it makes the variable {name} with tf.Variable and with tf.get_variable; give one of '
                             'the two another name')
        shape = options.get('shape')
        if isinstance(shape, (list, tuple)):  # where TensorFlow 1 took 3.0 for 3, the result of a division
            options['shape'] = [int(size) if isinstance(size, float) and size.is_integer() else size for size in shape]
        # A strategy of tf.distribute reduces no variable by itself: the update does. What is read after an update is
        # the new value, where tf.nn.dynamic_rnn would cache the old one. Variables are not divided among parameter
        # servers, and are resource variables, also where the network asks for others.
        options.update(synchronization=tf.VariableSynchronization.AUTO, aggregation=tf.VariableAggregation.NONE,
                       caching_device=None, partitioner=None, use_resource=True)
        if self._outer.reuse and name not in self._variables:
            options['reuse'] = True
        self._is_getting = True
        try:
            variable = getter(name, *args, **options)
        finally:
            self._is_getting = False
        if name not in self._variables:
            self._variables[name] = variable
            self._note(name.rstrip('/'), variable)
            if regularizer:
                # Whatever the scope is here; and outside of a loop that makes the variable.
                with self.graph.as_default(), tf.name_scope(f'{self._scope}{name}/Regularizer/'):
                    penalty = regularizer(variable)
                if penalty is not None:
                    tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
        return variable

    def _note(self, name, variable):
        """Notes a variable that the function gets for the first time: how copies name it, and what it assigns."""
        made = variable.op.name
        if made.endswith(f'/{name}'):
            self._of_copy = made.removesuffix(name)
        elif made.startswith(f'{name}/'):  # in the replicas of a strategy
            self._of_copy = made.removeprefix(name)
        variable.initialized_value = lambda: variable.initial_value  # which resource variables do not have
        for method in _ASSIGNMENTS:
            setattr(variable, method, functools.partial(_assign, variable, method))

    def _create(self, next_creator, initial_value=None, trainable=None, collections=None, dtype=None, name=None,
                constraint=None, **options):
        """Makes a variable; one that `tf.Variable` would make comes from `tf.get_variable`, by the name it would have.

        So all towers have the same one.
        """
        if self._is_getting:
            return next_creator(initial_value=initial_value, trainable=trainable, collections=collections, dtype=dtype,
                                name=name, constraint=constraint, **options)
        scope = f'{self.graph.get_name_scope()}/'.removeprefix(self._scope).lstrip('/')
        name = first = scope + (name or 'Variable')
        number = 0
        while name in self._variables or name in self._before:
            number += 1
            name = f'{first}_{number}'
        value = tf.convert_to_tensor(initial_value() if callable(initial_value) else initial_value, dtype)
        with tf.variable_scope(self._root, reuse=tf.AUTO_REUSE, auxiliary_name_scope=False):
            variable = tf.get_variable(name, dtype=value.dtype, initializer=value, constraint=constraint,
                                       trainable=trainable is not False, collections=collections)
        self._by_tf_variable.add(name)
        return variable

    def is_within(self, name: str, scope: str) -> bool:
        """Returns whether a name begins with a scope, as collections compare them, with or without the tower's own."""
        name, has_own = name.replace(self._of_copy, ''), scope.startswith(self._scope)
        return bool(re.match(scope, name if has_own else name.removeprefix(self._scope)))

    def _has_operation(self, name):
        with contextlib.suppress(KeyError, ValueError):
            return bool(self.graph.get_operation_by_name(name))
        return False

    def choose(self, chosen: bool, true_fn: Callable, false_fn: Callable) -> Any:
        """Builds both branches of a condition that is known; returns what the chosen one does."""
        results = {}
        for branch, build in (True, true_fn), (False, false_fn):
            count = len(self._assigned)
            before = {key: tf.get_collection(key) for key in (tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.LOSSES)}
            results[branch] = _as_tensors(build())
            if branch != bool(chosen):
                del self._assigned[count:]
                for key, entries in before.items():
                    tf.get_collection_ref(key)[:] = entries
        return results[bool(chosen)]

    def assign(self, variable: tf.Variable, method: str, value: Any = None, use_locking: bool | None = None,
               name: str | None = None, read_value: bool = True, delta: Any = None) -> tf.Tensor | tf.Operation:
        """Notes an assignment, which the update will make once all towers have computed theirs.

        Args:
          variable: to which the function assigns.
          method: 'assign', 'assign_add' or 'assign_sub'; the others are its arguments.

        Returns:
          What the method does: the variable's value after it.
        """
        value = delta if value is None else value
        if variable.trainable or variable.dtype.base_dtype == tf.bool:
            raise BrokenRule(f'it assigns to the variable {variable.op.name}, which is '
                             f"{'trained' if variable.trainable else 'a boolean'}{place_now()}; leave the "
                             'assignment out, or make the variable a number with trainable=False')
        with tf.name_scope(name or method):
            value = tf.convert_to_tensor(value, variable.dtype.base_dtype)
            if method == 'assign_sub':
                value = -value
            before = [] if method == 'assign' else [variable.read_value()]
            self._own_reads.update(read.op for read in before)
            # No gradient flows through a variable.
            after = tf.stop_gradient(sum(before, value), name='assigned')
        self._assigned.append(_Assignment(variable, value, method != 'assign', after))
        return after if read_value else after.op

    def collect(self, logits: tf.Tensor, training: bool) -> None:
        """Adds penalties to the collection LOSSES and assignments to the moving statistics, if they count.

        A penalty counts once, whether or not the function has added it to a loss. An assignment does if it is in the
        collection UPDATE_OPS, or the logits or a loss wait for it. Where the function is not called for training, none
        does.

        Raises:
          BrokenRule: UPDATE_OPS has something else.
        """
        updates, penalties = (_taken(key) for key in (tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.REGULARIZATION_LOSSES))
        if not training:
            return
        losses = _losses_with(penalties)
        self._add_assignments(updates, with_inputs([logits.op, *losses]))

    def _add_assignments(self, updates, used):
        """Adds those assignments to the moving statistics that `updates`, or operations that are `used`, wait for."""
        of_updates = [with_inputs([_op(update)]) for update in updates]
        self._refuse_writes(used.union(*of_updates))
        assigned = {each.after.op for each in self._assigned}
        around = with_inputs([tf.no_op()])  # that all operations here wait for
        for update, needed in zip(updates, of_updates):
            if all(operation.type == 'NoOp' for operation in needed - around):
                continue
            if not needed & assigned:
                raise BrokenRule(f'it adds {self._relative(update)} to the collection UPDATE_OPS'
                                 f'{place_of(_op(update).name)}, which is not {_WAYS}; {_REMEDY}')
        used = used.union(*of_updates)
        self._refuse_reads(used)
        for variable, value, is_change, after in self._assigned:
            if after.op in used:
                add_assignment(variable, value, is_change)
            else:
                tf.add_to_collection(IN_VAIN, after)

    def _relative(self, operation):
        return operation.name.split(':')[0].removeprefix(self._scope)

    def _refuse_writes(self, operations):
        """Raises a BrokenRule if an operation of the function changes a variable by itself."""
        for operation in operations:
            if WRITES.fullmatch(operation.type) and operation.name.startswith(self._scope):
                changes = f'its operation {self._relative(operation)} changes a variable{place_of(operation.name)}'
                if tf.distribute.has_strategy():  # for which TensorFlow's moving averages assign in another way
                    raise BrokenRule(f'{changes} within tf.distribute; use --variable_update=replicated')
                raise BrokenRule(f'{changes}, but not by {_WAYS}, so each update mode would run it a different number '
                                 f'of times; {_REMEDY}')

    def _refuse_reads(self, used):
        """Raises a BrokenRule if a variable is read once it is assigned: it has another value only after the step."""
        readers = collections.defaultdict(list)  # also loops and branches, which take the handle of a variable
        for operation in used - self._own_reads:
            for tensor in operation.inputs:
                readers[tensor.op.name].append(operation)
        for variable, _, _, after in self._assigned:
            for operation in readers[variable.op.name] if after.op in used else ():
                if after.op in with_inputs([operation]):
                    raise BrokenRule(f'it reads the variable {variable.op.name} after assigning to it'
                                     f'{place_of(operation.name)}, but an assignment takes effect at the end of the '
                                     'step; use what the assignment returns')


def _as_tensors(result):
    """Returns what a branch has built with its numbers as tensors, as `tf.cond` does."""
    return tf.nest.map_structure(
        lambda each: each if each is None or isinstance(each, tf.Operation) else tf.convert_to_tensor(each), result)


def _losses_with(penalties):
    """Adds penalties to the collection LOSSES; returns the operations of the losses that the function has added.

    A penalty from which one of these is computed counts in it.
    """
    losses = [loss for loss in tf.get_collection(tf.GraphKeys.LOSSES) if isinstance(loss, tf.Tensor)]
    # `tf.losses.get_total_loss` is the sum of the others.
    totals = [loss.op for loss in losses if _TOTAL.search(loss.op.name) and loss.op.type in _SUMS]
    summed = {tensor.op for total in totals for tensor in total.inputs}
    _take_out(tf.GraphKeys.LOSSES, [loss for loss in losses if loss.op in summed])
    losses = [loss.op for loss in losses if loss.op not in summed]
    added = with_inputs(losses, controls=False)
    others = [penalty for penalty in penalties if penalty.op not in added]
    if others:
        tf.add_to_collection(tf.GraphKeys.LOSSES, tf.add_n(others, name='regularization_loss'))
    return losses


def _op(update):
    return update if isinstance(update, tf.Operation) else update.op


def _taken(key):
    """Empties a collection; returns what was in it."""
    entries = tf.get_collection(key)
    tf.get_collection_ref(key).clear()
    return entries


def _take_out(key, entries):
    kept = tf.get_collection_ref(key)
    kept[:] = [entry for entry in kept if not any(entry is each for each in entries)]
