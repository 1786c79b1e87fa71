"""Gives variables values that come from outside the graph: from a checkpoint, another model, or an earlier step."""
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf


class Loader:
    """Gives variables values. Create it before the graph is finalised.

    Args:
      variables: the variables of the current graph that may get values, by their names.
    """

    def __init__(self, variables: Mapping[str, tf.Variable]):
        self._assignments = {}
        with tf.name_scope('load'):
            for name, variable in variables.items():
                value = tf.placeholder(variable.dtype.base_dtype, variable.shape)
                self._assignments[name] = value, variable.assign(value, read_value=False)

    def load(self, session: tf.Session, values: Mapping[str, np.ndarray]) -> None:
        """Gives variables their values, all at once.

        Args:
          session: of the graph.
          values: arrays by the names of their variables, which must be among those given to the constructor.
        """
        assignments = {name: self._assignments[name] for name in values}
        session.run([operation for _, operation in assignments.values()],
                    {value: values[name] for name, (value, _) in assignments.items()})
