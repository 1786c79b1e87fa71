"""The graph's collections, one tower at a time: a network finds in them what it would find if it were built alone.

Networks read collections: `tf.trainable_variables()` for an L2 loss, or one that they fill themselves. A tower must not
find there the variables and losses of the towers before it.
"""
import contextlib
from collections.abc import Iterator, Mapping

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import with_inputs
from cifar10.base.own_code import place_of

# Operations that hand on the value of a variable, which the towers may share.
_READS = ('ReadVariableOp', 'Identity')


class OwnCollections:
    """The collections of the current graph, for towers that are built one after the other.

    Attributes:
      variables: for each tower built so far, the variables that it has got from `tf.get_variable`, by their names.
    """

    def __init__(self):
        self.variables = []
        self._before = _contents()
        self._keys = {}  # id of a variable -> the collections that it is in from the beginning
        self._tower_of = {}  # name of an operation -> the tower that has made it

    @contextlib.contextmanager
    def of_tower(self, k: int) -> Iterator[None]:
        """Context in which tower k is built; call it in the order of the towers, within their scopes of variables.

        When it begins, the collections are as they were before the first tower. A variable enters its collections when
        the tower gets it, whether the tower makes it or shares it. Afterwards the collections have what all towers have
        added.

        Raises:
          ValueError: the tower does not get the variables that tower 0 got, or uses what another tower has made.
        """
        graph, others = tf.get_default_graph(), _contents()
        count = len(graph.get_operations())
        if k:
            # A network that asks for the global step makes it if there is none, but not for each tower.
            step = {tf.GraphKeys.GLOBAL_STEP: others.get(tf.GraphKeys.GLOBAL_STEP, [])}
            _set_contents({**self._before, **step})
        with self._collecting() as got:
            yield
        self.variables.append(got)
        operations = graph.get_operations()[count:]
        self._tower_of.update((operation.name, k) for operation in operations)
        self._refuse_other_variables(k)
        self._refuse_tensors_of_others(k, operations)
        if k:
            self._add_to(others)
            _set_contents(others)

    @contextlib.contextmanager
    def _collecting(self):
        """Context in which each variable that `tf.get_variable` returns enters its collections; as a dict by names."""
        scope = tf.get_variable_scope()
        got = {}

        def get(getter, name, *args, **kwargs):
            variable = getter(name, *args, **kwargs)
            name = name.removeprefix(f'{scope.name}/')
            if name not in got:
                self._collect(variable)
            got[name] = variable
            return variable
        with tf.variable_scope(scope, custom_getter=get, auxiliary_name_scope=False):
            yield got

    def _collect(self, variable):
        """Adds a variable to its collections: those in which it is when it is made."""
        if id(variable) not in self._keys:  # it is new
            self._keys[id(variable)] = [key for key, entries in _contents().items() if _has(entries, variable)]
        for key in self._keys[id(variable)]:
            if not _has(tf.get_collection(key), variable):
                tf.add_to_collection(key, variable)

    def _add_to(self, others):
        """Adds to the contents of the towers before what this one has added."""
        for key, entries in _contents().items():
            there, before = others.setdefault(key, []), self._before.get(key, ())
            there += [entry for entry in entries if not (  # an earlier tower has added the variables that it shares
                _has(before, entry) or _has(there, entry) or id(entry) in self._keys)]

    def _refuse_other_variables(self, k):
        """Raises a ValueError if tower k has not got the variables that tower 0 got."""
        got, first = self.variables[k], self.variables[0]
        for name in sorted((got.keys() ^ first.keys()) - {tf.GraphKeys.GLOBAL_STEP}):
            which, other = (k, 0) if name in got else (0, k)
            raise ValueError(f'tower {which} gets the variable {name}, and tower {other} does not; get the same '
                             'variables in each call, whether they are reused or not, and keep no tf.make_template '
                             'between calls')

    def _refuse_tensors_of_others(self, k, operations):
        """Raises a ValueError if an operation of tower k uses what another tower has made.

        The towers share variables and initial values.
        """
        variables = self.variables[k].values()
        shared = with_inputs(variable.initializer for variable in variables)
        shared |= {variable.op for variable in [*variables, *tf.get_collection(tf.GraphKeys.GLOBAL_STEP)]}
        for operation in operations:
            for tensor in () if operation in shared else operation.inputs:
                source = tensor.op
                while source.type in _READS:
                    source = source.inputs[0].op
                if self._tower_of.get(source.name, k) != k and source not in shared:
                    raise ValueError(f'{operation.name} uses {source.name}, which another tower has made'
                                     f'{place_of(operation.name)}; keep no tensors or variables between two calls of '
                                     'the function, and do not look for operations in the graph')


def _contents() -> Mapping[str, list]:
    """Returns what the collections of the current graph contain, by their names."""
    return {key: tf.get_collection(key) for key in tf.get_default_graph().get_all_collection_keys()}


def _set_contents(contents):
    """Gives the collections of the current graph these contents, and no others."""
    for key in {*contents, *tf.get_default_graph().get_all_collection_keys()}:
        tf.get_collection_ref(key)[:] = contents.get(key, [])


def _has(entries, entry):
    return any(each is entry for each in entries)
