"""The default update mode: one copy of the variables on the CPU, updated with the towers' mean gradient."""
import contextlib

import tensorflow.compat.v1 as tf

from cifar10.parallel.packing import pack_gradients
from cifar10.parallel.towers import average_gradients, shared_variables
from cifar10.parallel.update import Update, UpdateMode


class ParameterServer(UpdateMode):
    """Shared variables: `average_gradients` averages over the towers, and the optimizer applies the mean once."""

    def __init__(self, devices):
        super().__init__(devices)
        self._elements = dict.fromkeys(devices.servers, 0)  # server -> number of elements of its variables

    @contextlib.contextmanager
    def tower_variables(self, k):
        with tf.variable_creator_scope(self._create_on_server), shared_variables(k):
            yield

    def reduce(self, towers):
        # Statistics, such as the moving averages of batch normalisation, are averaged like gradients.
        tower_grads = [tower.gradients + tower.statistics for tower in towers]
        # Small gradients of GPUs travel together. CPU devices share memory, so packing would only copy.
        packed, unpack = pack_gradients(tower_grads) if self.devices.on_gpus else (tower_grads, list)
        with tf.device('/cpu:0'):
            means = unpack(average_gradients(packed))
        count = len(towers[0].gradients)
        return [Update(means[:count], means[count:], towers, '/cpu:0')]

    def _create_on_server(self, next_creator, on_first_server=False, **arguments):
        """Creates a variable on the server with the fewest elements, or on the first server."""
        server = next(iter(self._elements)) if on_first_server else min(self._elements, key=self._elements.__getitem__)
        with tf.device(server):
            variable = next_creator(**arguments)
        self._elements[server] += variable.shape.num_elements()
        return variable
