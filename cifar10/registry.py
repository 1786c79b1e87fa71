"""Everything that is chosen by name: update modes, networks, optimizers, data sets, precisions and more.

An entry is 'module:object'. Nothing is imported before an entry is used, so that `--help` and a mistyped
flag need no TensorFlow.
"""
import importlib
from typing import Any


class Registry(dict):
    """Maps names to 'module:object'; `load` returns the object."""

    def load(self, name: str) -> Any:
        """Imports and returns the object that is registered as `name`.

        Raises:
          KeyError: the name is not registered.
        """
        module, _, attribute = self[name].partition(':')
        return getattr(importlib.import_module(module), attribute)


# The first entry of each is the default. An update mode is a `parallel.update.UpdateMode`.
UPDATE_MODES = Registry({
    'parameter_server': 'cifar10.parallel.parameter_server:ParameterServer',
    'replicated': 'cifar10.parallel.replicated:Replicated',
    'async': 'cifar10.parallel.asynchronous:Asynchronous',
    'mirrored': 'cifar10.parallel.mirrored:Mirrored'})

# A `networks.Network`.
NETWORKS = Registry({
    'classic': 'cifar10.networks.classic:NETWORK',
    'fast': 'cifar10.networks.fast:NETWORK'})

# A function (learning rate) -> `tf.train.Optimizer`; muon's takes an auxiliary learning rate too.
OPTIMIZERS = Registry({
    'sgd': 'cifar10.optim.optimizers:sgd',
    'momentum': 'cifar10.optim.optimizers:momentum',
    'nesterov': 'cifar10.optim.optimizers:nesterov',
    'muon': 'cifar10.optim.optimizers:muon',
    'adam': 'cifar10.optim.optimizers:adam'})

# An `optim.schedule.Schedule`.
SCHEDULES = Registry({
    'staircase': 'cifar10.optim.schedule:Staircase',
    'linear': 'cifar10.optim.schedule:Linear'})

# A `data.augment.Augmentation`.
AUGMENTATIONS = Registry({
    'classic': 'cifar10.data.augment:Classic',
    'shift': 'cifar10.data.shift:Shift'})

# A `data.records.Dataset`.
DATASETS = Registry({'cifar10': 'cifar10.data.records:CIFAR10', 'shapes': 'cifar10.data.records:SHAPES'})

# An `optim.precision.Precision`.
PRECISIONS = Registry({
    'fp32': 'cifar10.optim.precision:FP32',
    'bf16': 'cifar10.optim.precision:BF16',
    'fp16': 'cifar10.optim.precision:FP16'})
AUTO = 'auto'  # the precision that the hardware is fastest in
