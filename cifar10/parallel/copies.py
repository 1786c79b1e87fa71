"""Copies of the variables, for modes in which several devices or towers have one each.

This file knows how a copy comes to its variables, but not what a mode does with them.
"""
import contextlib
from collections.abc import Iterator

import tensorflow.compat.v1 as tf


class Copies:
    """Creates the variables of several copies.

    Copy 0 has the primaries: plain names, and the only ones that are saved. The other copies are local variables, named
    `replica_<number>/...`, which start with the values of the primaries.

    Args:
      count: how many copies there are.

    Attributes:
      variables: for each copy the variables created so far, slots included; all copies create them in the same order.
      trainable: for each copy those of them that are trained.
    """

    def __init__(self, count: int):
        self.variables = [[] for _ in range(count)]
        self.trainable = [[] for _ in range(count)]
        self._primary_values = []  # reads of copy 0's variables, in the order of their creation

    @contextlib.contextmanager
    def created(self, copy: int, reuse: bool = False) -> Iterator[None]:
        """Context in which one copy gets its variables.

        Args:
          copy: its number.
          reuse: whether `tf.get_variable` returns those that the copy has already.
        """
        def creator(next_creator, **arguments):
            trained = arguments.get('trainable') is not False
            if copy > 0:
                # Local variables are initialised after the primaries were initialised or restored, so the copies
                # follow a restore by themselves.
                arguments.update(collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False,
                                 initial_value=self._primary_values[len(self.variables[copy])])
            variable = next_creator(**arguments)
            self.variables[copy].append(variable)
            if trained:
                self.trainable[copy].append(variable)
            if copy == 0:
                with tf.control_dependencies(None):
                    self._primary_values.append(variable.read_value())
            return variable

        scope = f'replica_{copy}' if copy else tf.get_variable_scope()
        with tf.variable_creator_scope(creator), \
                tf.variable_scope(scope, reuse=reuse, auxiliary_name_scope=False):
            yield
