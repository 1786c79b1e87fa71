"""Validation: evaluation on the test images between two steps of a run, in its process and on its devices.

It has its own graph and session, into which the variables are copied, so that it does not affect the steps.
"""
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import seeded_graph
from cifar10.base.variables import Loader
from cifar10.data import records
from cifar10.evaluation.evaluator import Evaluator, Result, batch_size, trained_session
from cifar10.model.averages import saved_names
from cifar10.model.recipe import Recipe
from cifar10.parallel.devices import Devices

_BATCH_SIZE = 500


class Validation:
    """Evaluates values of the variables of a run.

    Args:
      recipe: the recipe of the run.
      data: the images to evaluate on.
      devices: devices of this process.
      use_ema: whether to evaluate the moving averages of the variables.

    Attributes:
      names: of the variables whose values it evaluates, as in checkpoints.
    """

    def __init__(self, recipe: Recipe, data: records.Records, devices: Devices, use_ema: bool):
        with seeded_graph() as graph:
            self._evaluator = Evaluator(data, recipe, devices.tower_devices, batch_size(data.size, _BATCH_SIZE))
            variables = saved_names(use_ema)
            self.names = list(variables)
            with tf.device('/cpu:0'):
                self._loader = Loader(variables)
        self._session = trained_session(devices, graph)
        self._session.run(self._evaluator.read)

    def evaluate(self, values: dict) -> Result:
        """Returns the Result of a pass over the images with these values of the variables, arrays by `names`."""
        self._loader.load(self._session, values)
        return self._evaluator.run(self._session)

    def close(self) -> None:
        """Closes the session, which frees its memory."""
        self._session.close()
