"""A call of a user's function in a graph of its own, where everything is as on one device.

What stands in for a function of TensorFlow while it runs is here.
"""
import contextlib
import functools
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import MOVING_STATISTICS, cpu_session, place_of, seeded_graph, with_inputs
from cifar10.base.own_files import place_now
from cifar10.model import network_draws, parts
from cifar10.model.layers import create_frozen, mended_gradients
from cifar10.own.code import BrokenRule
from cifar10.own.pieces import Cut, operation_of, value_of

POSITION = 'position'  # the input that `uniform_like` draws by, int64: the position of the first example
STEP = 'global_step'  # the input that is the handle of the global step
_COND, _PLACEHOLDER, _WITH_DEFAULT = tf.cond, tf.placeholder, tf.placeholder_with_default
_COND_2, _FROM_CHECKPOINT = tf2.cond, tf.train.init_from_checkpoint


class _Input(NamedTuple):
    """An input, by its name, that a placeholder is fed."""
    name: str


class _Default(NamedTuple):
    """That a placeholder is not fed, but keeps its default."""


class Call:
    """A call of a function in a graph of its own.

    Args:
      inputs, training, seed: as for `traced.trace`.
      known: what another call has returned as `known`, for each placeholder in the order in which they are made.

    Attributes:
      inputs: the tensors that the function is given, by their names.
      variables: those that the function has made, by the names of their handles.
      placeholders: those that it has made.
      unfed: the names of those that keep their defaults.
      cuts, back_cuts: where it has cut itself, and its gradients.
      starts: the number of operations before each cut.
      not_taken: the operations of branches that are not taken.
      is_handing_back: whether gradients are taken that parts hand back; the function may take others itself.
    """

    def __init__(self, inputs: Mapping[str, tuple], training: bool, seed: int, known: Sequence[Any] = ()):
        self.variables = {}
        self.placeholders = []
        self.not_taken = set()
        self.cuts, self.back_cuts, self.starts = [], [], []
        self._known = known
        self.unfed = []
        self.is_handing_back = False
        self._training = training
        with seeded_graph(seed) as self.graph:
            self.step = tf.train.get_or_create_global_step()
            self.inputs = {name: tf.placeholder(dtype, shape, name) for name, (dtype, shape) in inputs.items()}
            self.position = tf.placeholder(tf.int64, [], POSITION)

    def run(self, function: Callable) -> tuple[Any, dict]:
        """Calls the function; returns (what it returns, what it says that its placeholders are fed)."""
        with self.graph.as_default(), self._drawing(), parts.cutting(self), _standing_in(self), mended_gradients(), \
                tf.variable_creator_scope(self._create), tf.variable_creator_scope(create_frozen), \
                tf.variable_scope(tf.get_variable_scope(), custom_getter=self._get, auxiliary_name_scope=False):
            result = function(*self.inputs.values())
        result, fed = with_fed(result)
        return result, {self._element(key): value for key, value in fed.items()}

    def _element(self, key):
        """Returns the tensor of the graph that a key of what is fed stands for, as in the feed_dict of a session."""
        try:
            return self.graph.as_graph_element(key, allow_operation=False)
        except (TypeError, ValueError, KeyError) as error:
            raise BrokenRule(f'beside its logits it returns a dict with the key {key!r}; its keys are the placeholders '
                             'that are fed: return the logits alone, or logits, {placeholder: value}') from error

    def _drawing(self):
        """Returns the context in which the draws of the function are those of the copy's position."""
        seed = network_draws.current_seed() if self._training else None
        return contextlib.nullcontext() if seed is None else network_draws.at_position(seed, self.position)

    def known(self, result: Any, fed: Mapping[tf.Tensor, Any]) -> list[Any]:
        """Returns for each placeholder the value that it is fed if it is known without the graph, else None.

        The value is one of Python's, the name of an input, or says that the placeholder, which is needed, keeps its
        default.
        """
        names = {id(tensor): _Input(name) for name, tensor in self.inputs.items()}
        given = {id(key): each for key, each in fed.items()}
        collected = [self.graph.get_collection(key) for key in (tf.GraphKeys.LOSSES, tf.GraphKeys.UPDATE_OPS)]
        needed = with_inputs(getattr(each, 'op', each) for each in [*tf.nest.flatten(result), *sum(collected, [])]
                             if isinstance(each, (tf.Tensor, tf.Operation)))
        found = []
        for each, before in itertools.zip_longest(self.placeholders, self._known[:len(self.placeholders)]):
            value = given.get(id(each))
            if tf.is_tensor(value):
                value = names.get(id(value)) or self._value(value)
            is_default = each.op.type == 'PlaceholderWithDefault' and each.op in needed or isinstance(before, _Default)
            found.append(_Default() if is_default and id(each) not in given else value)
        return found

    def follows_from(self, known: Sequence[Any]) -> bool:
        """Returns whether the call was given these values of its placeholders."""
        return all(type(one) is type(other) and np.array_equal(one, other)
                   for one, other in itertools.zip_longest(known, self._known))

    def _get(self, getter, name, *args, regularizer=None, **options):
        """Returns what `tf.get_variable` does, whole, and with its penalty outside of a loop that makes it."""
        shape = options.get('shape')
        if isinstance(shape, (list, tuple)):  # where TensorFlow 1 took 3.0 for 3, the result of a division
            options['shape'] = [int(size) if isinstance(size, float) and size.is_integer() else size for size in shape]
        count = len(self.variables)
        variable = getter(name, *args, **{**options, 'partitioner': None, 'use_resource': True})
        if regularizer and len(self.variables) > count:
            with self.graph.as_default(), tf.name_scope(f'{name}/Regularizer/'):
                penalty = regularizer(variable)
            if penalty is not None:
                tf.add_to_collection(tf.GraphKeys.REGULARIZATION_LOSSES, penalty)
        return variable

    def _create(self, next_creator, **arguments):
        """Makes a resource variable, also where another kind is asked for."""
        variable = next_creator(**{**arguments, 'use_resource': True, 'caching_device': None})
        variable.initialized_value = lambda: variable.initial_value  # which resource variables do not have
        self.variables[variable.handle.op.name] = variable
        return variable

    def leave_out_cuts(self, needed: Collection[tf.Operation]) -> None:
        """Leaves out the cuts of what is not among the operations that are needed."""
        cuts = [(cut, start) for cut, start in zip(self.cuts, self.starts)
                if self.graph.get_tensor_by_name(cut.taken).op in needed]
        self.cuts, self.starts = ([each[number] for each in cuts] for number in range(2))

    def depends_on_inputs(self, operation: tf.Operation) -> bool:
        """Returns whether an operation needs what a copy is fed."""
        fed = {each.op for each in (*self.inputs.values(), self.position)}
        return not fed.isdisjoint(with_inputs([operation]))

    def outside(self, output_gradients: Sequence[str]) -> set[str]:
        """Returns the names of operations that a copy has from elsewhere: inputs, variables, gradients of outputs."""
        given = [*self.inputs.values(), self.position, self.step.handle]
        values = [value_of(handle) for handle in self.variables]
        return {*(each.op.name for each in given), *self.variables, *map(operation_of, [*values, *output_gradients])}

    def instead(self, nodes: Mapping[str, tf.NodeDef], fed: Mapping[tf.Tensor, tf.Tensor]) -> dict[str, str]:
        """Returns what is taken in the place of a tensor: of each read, the value; of a placeholder, what it is fed."""
        values = {f'{name}:0': value_of(operation_of(node.input[0])) for name, node in nodes.items()
                  if node.op == 'ReadVariableOp' and operation_of(node.input[0]) in self.variables}
        return {**values, **self.fed_instead(nodes, fed)}

    def fed_instead(self, nodes: Mapping[str, tf.NodeDef], fed: Mapping[tf.Tensor, tf.Tensor]) -> dict[str, str]:
        """Returns what is taken in the place of a tensor that is fed, or of an operation that another waits for."""
        given = {key.name: value.name for key, value in fed.items() if key is not value}
        for key in given:
            for _ in given:  # a placeholder may be fed another one
                given[key] = given.get(given[key], given[key])
        controls = {f'^{operation_of(key)}': f'^{operation_of(value)}' for key, value in given.items()
                    if operation_of(key) in nodes and nodes[operation_of(key)].op.startswith('Placeholder')}
        return {**given, **controls}

    # What stands in for functions of TensorFlow while the function runs.

    def cond(self, pred: Any, true_fn: Callable | None = None, false_fn: Callable | None = None, strict: bool = False,
             name: str | None = None, fn1: Callable | None = None, fn2: Callable | None = None) -> Any:
        """Stands in for `tf.cond`: where the condition is known, only that branch counts.

        Both are built, because either may make the variables that the other reuses. As in TensorFlow 1, the only
        element of a list is returned alone.
        """
        chosen = self._value(pred) if tf.is_tensor(pred) else pred
        branches = true_fn or fn1, false_fn or fn2
        if chosen is None or tf.get_default_graph() is not self.graph:
            result = _COND(pred, *branches, strict, name)
        else:
            results = {}
            for branch, build in zip((True, False), branches):
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
        """Returns the value of a tensor of the graph that is the same at all times; None if it is not."""
        if any(each.type.startswith('Placeholder') or each.op_def.is_stateful for each in with_inputs([tensor.op])):
            return None
        if (known := tf.get_static_value(tensor)) is not None or tensor.graph is not self.graph:
            return known
        definition = tf.graph_util.extract_sub_graph(self.graph.as_graph_def(), [tensor.op.name])
        with cpu_session() as session:
            return session.run(tf.import_graph_def(definition, return_elements=[tensor.name])[0])

    def placeholder(self, make: Callable, *args: Any, **options: Any) -> tf.Tensor:
        """Stands in for `tf.placeholder`: what is fed from Python is a constant once it is known.

        One that is needed and that nothing feeds is refused later, in `traced`.
        """
        number = len(self.placeholders)
        made = make(*args, **options)
        value = self._known[number] if number < len(self._known) else None
        if isinstance(value, _Default):
            self.unfed.append(made.op.name)
            made = made.op.inputs[0]
        elif value is not None:
            made = fed(made, self.inputs[value.name] if isinstance(value, _Input) else value)
        self.placeholders.append(made)
        return made

    def cut(self, x: tf.Tensor) -> tf.Tensor:
        """Stands in for `parts.Division.cut`: marks where the value is cut, and on the way back its gradient."""
        @tf.custom_gradient
        def marked(x):
            def gradient(dy):
                if not self.is_handing_back:
                    return dy
                dx = tf.identity(dy, 'cut')
                self.back_cuts.append(Cut(dy.name, dx.name))
                return dx
            return tf.identity(x, 'cut'), gradient
        y = marked(x)
        self.cuts.append(Cut(x.name, y.name))
        self.starts.append(len(self.graph.get_operations()))
        return y


@contextlib.contextmanager
def _standing_in(call):
    """Context in which functions of TensorFlow that know nothing of towers have substitutes."""
    def on(make):
        return functools.partial(call.placeholder, make)
    tf.cond, tf.placeholder, tf.placeholder_with_default = call.cond, on(_PLACEHOLDER), on(_WITH_DEFAULT)
    tf.train.init_from_checkpoint = _refuse_checkpoint
    tf2.cond = lambda pred, true_fn=None, false_fn=None, name=None: call.cond(pred, true_fn, false_fn, True, name)
    try:
        yield
    finally:
        tf.cond, tf.placeholder, tf.placeholder_with_default = _COND, _PLACEHOLDER, _WITH_DEFAULT
        tf.train.init_from_checkpoint = _FROM_CHECKPOINT
        tf2.cond = _COND_2


def _refuse_checkpoint(*arguments, **options):
    raise BrokenRule(f'it takes variables from a checkpoint by tf.train.init_from_checkpoint{place_now()}; leave it '
                     'out, and use --warm_start')


def _as_tensors(result):
    """Returns what a branch has built with its numbers as tensors, as `tf.cond` does."""
    return tf.nest.map_structure(
        lambda each: each if each is None or isinstance(each, tf.Operation) else tf.convert_to_tensor(each), result)


def fed(key: tf.Tensor, value: Any) -> tf.Tensor:
    """Returns what a tensor is fed, in its type; raises a BrokenRule if that does not fit."""
    tensor = None if value is None else tf.convert_to_tensor(value)
    if tensor is None or not tensor.shape.is_compatible_with(key.shape) or (
            tensor.dtype.is_floating and not key.dtype.is_floating):
        raise BrokenRule(f'it feeds {key.name}, {phrase(key)}{place_of(key.op.name)}, '
                         f'{value if tensor is None else phrase(tensor)}; feed what fits, also in its type')
    return tf.cast(tensor, key.dtype)


def phrase(value: Any) -> str:
    """Returns a phrase for what a function returned or collected, such as 'a tensor float32 (8, 10)'."""
    return f'a tensor {value.dtype.name} {value.shape}' if isinstance(value, tf.Tensor) else type(value).__name__


def with_fed(result: Any) -> tuple[Any, dict]:
    """Returns (what a function returned, what it says that its placeholders are fed)."""
    is_pair = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)
    return result if is_pair else (result, {})
