"""Calls a user's function in a separate graph, as if it ran on one device."""
import contextlib
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, seeded_graph, with_inputs
from cifar10.model import network_draws
from cifar10.model.layers import mended_gradients
from cifar10.model.parts import undivided
from cifar10.model.untrained_variables import create_frozen
from cifar10.own import refusals
from cifar10.own.assignments import STEPS
from cifar10.own.patches import patched
from cifar10.own.subgraphs import operation_of, value_of

POSITION = 'position'  # an input of `uniform_like`'s draws, int64: the position of the first example
STEP = 'global_step'  # the input that is the handle of the global step
LOSS_SCALE = 'loss_scale'  # the input that scales the loss before its gradients are taken
_COND, _PLACEHOLDER, _WITH_DEFAULT = tf.cond, tf.placeholder, tf.placeholder_with_default
_OPERATORS = 'add', 'sub', 'mul', 'truediv', 'pow'


class Tower(NamedTuple):
    """The result of a traced function, as tensors and operations of its graph.

    Attributes:
      scalars: float scalars by their names. A model's first scalar is `total_loss`; a network's losses are in the
        collection LOSSES.
      train_op: the operation that takes a model's step; None: the program's optimizer takes it.
      shown: other tensors, or lists of tensors, by their names.
      feeds: the values to feed, by placeholder or by name.
      notes: warnings, one phrase each.
    """
    scalars: Mapping[str, tf.Tensor]
    train_op: tf.Operation | None = None
    shown: Mapping[str, Any] = {}
    feeds: Mapping[Any, Any] = {}
    notes: Sequence[str] = ()


def tensors_of(batch: Any) -> dict[str, tf.Tensor]:
    """Returns the tensors of a batch of any structure by name, including the parts of sparse and ragged tensors."""
    return {f'batch_{number}': each for number, each in enumerate(tf.nest.flatten(batch, expand_composites=True))}


class Call:
    """Calls a function in a separate graph.

    Args:
      batch: the input of the function: tensors of any graph in any structure, for their types and shapes.
      training: whether to take gradients and keep assignments.
      seed: the seed of the graph.
      values: the values of the placeholders in creation order, as `values_of_placeholders` returns them.
      graph: an existing graph for the function; None: a new one.

    Attributes:
      inputs: the tensors of the function's batch, by name.
      step, position, loss_scale: the variable and the tensors that each copy also receives.
      variables: the variables that the function created, by the names of their handles.
      gotten: the names of the handles of variables from `tf.get_variable`.
      placeholders: the placeholders that it created; a placeholder with a known value is a constant.
      feeds: the tensors to feed, by placeholder.
      not_taken: the operations of branches that are not taken.
    """

    def __init__(self, batch: Any, training: bool, seed: int | None, values: Sequence[Any] = (),
                 graph: tf.Graph | None = None):
        self.training = training
        self._structure = batch
        self.variables: dict[str, tf.Variable] = {}
        self.gotten: set[str] = set()
        self.placeholders: list[tf.Tensor] = []
        self.feeds: dict[tf.Tensor, tf.Tensor] = {}
        self.not_taken: set[tf.Operation] = set()
        self._values = iter(values)
        with graph.as_default() if graph else seeded_graph(seed) as self.graph:
            self.step = tf.train.get_or_create_global_step()
            with tf.name_scope('cifar10.inputs'):  # so that no variable of the user's has the name of an input
                self.inputs = {name: tf.placeholder(each.dtype, each.shape, name)
                               for name, each in tensors_of(batch).items()}
                self.position = tf.placeholder(tf.int64, [], POSITION)
                self.loss_scale = tf.placeholder(tf.float32, [], LOSS_SCALE)

    def run(self, make: Callable[..., Tower]) -> Tower:
        """Calls a function of a batch; returns its Tower."""
        conds = {(tf, 'cond'): self.cond,
                 (tf2, 'cond'): lambda pred, true_fn=None, false_fn=None, name=None: self.cond(
                     pred, true_fn, false_fn, True, name)}
        makers = {(tf, 'placeholder'): functools.partial(self.placeholder, _PLACEHOLDER),
                  (tf, 'placeholder_with_default'): functools.partial(self.placeholder, _WITH_DEFAULT)}
        # As with the variables of TensorFlow 1, `variable += tensor` is a sum, and a variable is true.
        kind = next(each for each in type(self.step).__mro__ if '__iadd__' in vars(each))
        operators = {(kind, f'__i{name}__'): getattr(kind, f'__{name}__') for name in _OPERATORS}
        operators[kind, '__bool__'] = lambda variable: True
        with self.graph.as_default(), self._drawing(), mended_gradients(), undivided(), \
                patched({**conds, **makers, **operators}), \
                tf.variable_creator_scope(self._create), tf.variable_creator_scope(create_frozen), \
                tf.variable_scope(tf.get_variable_scope(), custom_getter=self._get, auxiliary_name_scope=False):
            tower = make(tf.nest.pack_sequence_as(
                self._structure, [*self.inputs.values()], expand_composites=True))
            given = {self._element(key): value for key, value in tower.feeds.items()}
            self.feeds = {key: as_fed(key, value) for key, value in given.items()}
        return tower

    def _element(self, key):
        """Returns the tensor that a key of `feeds` stands for, as in the feed_dict of a session."""
        try:
            return self.graph.as_graph_element(key, allow_operation=False)
        except (TypeError, ValueError, KeyError) as error:
            raise refusals.wrong_feed(key) from error

    def _drawing(self):
        """Returns a context that makes the function's draws depend on the copy's position."""
        seed = network_draws.current_seed() if self.training else None
        return contextlib.nullcontext() if seed is None else network_draws.at_position(seed, self.position)

    def values_of_placeholders(self) -> list[np.ndarray | None]:
        """Returns the value of each placeholder; None if it depends on the inputs, or nothing feeds the placeholder.

        In evaluation, an unfed placeholder with a default has the default.
        """
        def value_of_placeholder(each):
            is_default = not self.training and each.op.type == 'PlaceholderWithDefault'
            tensor = self.feeds.get(each, each.op.inputs[0] if is_default else None)
            return None if tensor is None else self._value(tensor)
        return [value_of_placeholder(each) for each in self.placeholders]

    def _get(self, getter, name, *args, regularizer=None, **options):
        """Returns the variable of `tf.get_variable`, in one piece, and makes its penalty outside of loops."""
        shape = options.get('shape')
        if isinstance(shape, (list, tuple)):  # TensorFlow 1 took 3.0, the result of a division, for 3
            options['shape'] = [int(size) if isinstance(size, float) and size.is_integer() else size for size in shape]
        count = len(self.variables)
        variable = getter(name, *args, **{**options, 'partitioner': None, 'use_resource': True})
        self.gotten.add(variable.handle.op.name)
        if regularizer and len(self.variables) > count:
            with self.graph.as_default(), tf.name_scope(f'{name}/Regularizer/'):
                penalty = regularizer(variable)
            if penalty is not None:
                tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
        return variable

    def _create(self, next_creator, **arguments):
        """Creates a resource variable, even if the caller asks for a reference variable."""
        variable = next_creator(**{**arguments, 'use_resource': True, 'caching_device': None})
        variable.initialized_value = lambda: variable.initial_value  # resource variables lack it
        self.variables[variable.handle.op.name] = variable
        return variable

    def given_operations(self) -> set[tf.Operation]:
        """Returns the operations that differ between copies: inputs, position, and placeholders fed with either."""
        given = {each.op for each in (*self.inputs.values(), self.position)}
        return given | {key.op for key, value in self.feeds.items() if not given.isdisjoint(with_inputs([value.op]))}

    def depends_on_inputs(self, operation: tf.Operation) -> bool:
        """Returns whether an operation needs the inputs of a copy."""
        return not self.given_operations().isdisjoint(with_inputs([operation]))

    def leave_out_variables(self, needed: Collection[tf.Operation]) -> None:
        """Drops variables that a tower does not need, if no checkpoint holds them, or an optimizer made them."""
        steps = with_inputs(each for each in self.graph.get_operations() if STEPS.match(each.type))
        trained = {each.handle.op for each in tf.trainable_variables()}
        kept = [each for each in self.variables.values() if each.handle.op in needed or self.training and (
            each.handle.op in trained or each.handle.op not in steps and refusals.is_saved(each))]
        begun = with_inputs(each.initializer for each in kept)  # includes variables that initial values read
        self.variables = {each.handle.op.name: each for each in self.variables.values() if each.handle.op in begun}

    def outside(self) -> set[str]:
        """Returns the names of the operations outside a copy: inputs, variables and their values."""
        given = [*self.inputs.values(), self.position, self.loss_scale, self.step.handle]
        values = [operation_of(value_of(handle)) for handle in self.variables]
        return {*(each.op.name for each in given), *self.variables, *values}

    def instead(self, nodes: Mapping[str, tf.NodeDef]) -> dict[str, str]:
        """Maps each tensor to its substitute: a read to its value, a placeholder to its feed."""
        values = {f'{name}:0': value_of(operation_of(node.input[0])) for name, node in nodes.items()
                  if node.op == 'ReadVariableOp' and operation_of(node.input[0]) in self.variables}
        return {**values, **self.fed_instead(nodes)}

    def fed_instead(self, nodes: Mapping[str, tf.NodeDef]) -> dict[str, str]:
        """Maps each fed tensor, or each operation that a control input names, to its substitute."""
        given = {key.name: value.name for key, value in self.feeds.items() if key is not value}
        for key in given:
            for _ in given:  # a placeholder may feed a placeholder
                given[key] = given.get(given[key], given[key])
        controls = {f'^{operation_of(key)}': f'^{operation_of(value)}' for key, value in given.items()
                    if operation_of(key) in nodes and nodes[operation_of(key)].op.startswith('Placeholder')}
        return {**given, **controls}

    # Substitutes for functions of TensorFlow while the function runs.

    def cond(self, pred: Any, true_fn: Callable | None = None, false_fn: Callable | None = None, strict: bool = False,
             name: str | None = None, fn1: Callable | None = None, fn2: Callable | None = None) -> Any:
        """Replaces `tf.cond`: if the condition is known, only one branch counts.

        Both are built, because either may make the variables that the other reuses. As in TensorFlow 1, the only
        element of a list is returned alone.
        """
        chosen = self._value(pred) if tf.is_tensor(pred) else pred
        then, otherwise = true_fn or fn1, false_fn or fn2
        if chosen is None or then is None or otherwise is None or tf.get_default_graph() is not self.graph:
            result = _COND(pred, then, otherwise, strict, name)
        else:
            results = {}
            for branch, build in (True, then), (False, otherwise):
                count = len(self.graph.get_operations())
                before = {key: tf.get_collection(key) for key in (
                    tf.GraphKeys.UPDATE_OPS, tf.GraphKeys.LOSSES, MOVING_STATISTICS)}
                results[branch] = _as_tensors(build())
                if branch != bool(chosen):
                    self.not_taken.update(self.graph.get_operations()[count:])
                    for key, entries in before.items():
                        tf.get_collection_ref(key)[:] = entries
            result = results[bool(chosen)]
        is_alone = not strict and isinstance(result, (list, tuple)) and len(result) == 1
        return result[0] if is_alone else result

    def _value(self, tensor):
        """Returns the value of a tensor of the graph that never changes; None if it may change."""
        if any(each.type.startswith('Placeholder') or each.op_def.is_stateful for each in with_inputs([tensor.op])):
            return None
        if (known := tf.get_static_value(tensor)) is not None or tensor.graph is not self.graph:
            return known
        definition = tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), [tensor.op.name])
        with cpu_session() as session:
            return session.run(tf.import_graph_def(definition, return_elements=[tensor.name])[0])

    def placeholder(self, make: Callable, *args: Any, **options: Any) -> tf.Tensor:
        """Replaces `tf.placeholder`: a value from Python becomes a constant once it is known."""
        value = next(self._values, None)
        made = make(*args, **options)
        self.placeholders.append(made if value is None else as_fed(made, value))
        return self.placeholders[-1]


def as_fed(key: tf.Tensor, value: Any) -> tf.Tensor:
    """Casts a value to the type of the tensor to feed; raises a ValueError if their shapes differ."""
    tensor = tf.convert_to_tensor(value)
    key.shape.assert_is_compatible_with(tensor.shape)
    return tf.cast(tensor, key.dtype)


def with_feeds(result: Any) -> tuple[Any, dict]:
    """Splits a function's result into (result, values to feed to its placeholders)."""
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result if is_pair else (result, {})


def _as_tensors(result):
    """Returns the result of a branch with its numbers as tensors, as `tf.cond` does."""
    return tf.nest.map_structure(
        lambda each: each if each is None or isinstance(each, tf.Operation) else tf.convert_to_tensor(each), result)
