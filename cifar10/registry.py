"""Everything that is chosen by name: update modes, networks, optimizers, data sets, precisions and more.

An entry is 'module:object'. Nothing is imported before an entry is used, so that `--help` and a mistyped
flag need no TensorFlow.
"""
import importlib
import re
from typing import Any, NamedTuple


class Own(NamedTuple):
    """What a user may name besides the entries of a registry.

    Attributes:
      form: how it is written, for messages.
      pattern: a regular expression for it.
      load: 'module:function' of a function name -> the object.
    """
    form: str
    pattern: str
    load: str


class Registry(dict):
    """Maps names to 'module:object'; `load` returns the object.

    Args:
      entries: the names.
      own: what else may be named, an Own; or None.
    """

    def __init__(self, entries: dict[str, str], own: Own | None = None):
        super().__init__(entries)
        self._own = own

    def is_own(self, name: str) -> bool:
        """Returns whether a name is of the form of a user's own."""
        return not super().__contains__(name) and bool(self._own and re.fullmatch(self._own.pattern, name))

    def __contains__(self, name):
        return super().__contains__(name) or self.is_own(name)

    @property
    def forms(self) -> list[str]:
        """The names, and the form of a user's own."""
        return [*self, *([self._own.form] if self._own else [])]

    def load(self, name: str) -> Any:
        """Imports and returns the object that is registered as `name`, or makes the user's own.

        Raises:
          KeyError: there is none.
        """
        if self.is_own(name):
            return _imported(self._own.load)(name)
        return _imported(self[name])


def _imported(entry):
    module, _, attribute = entry.partition(':')
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
    'fast': 'cifar10.networks.fast:NETWORK'}, Own('FILE.py:FUNCTION', r'.*\.py:\w+', 'cifar10.networks.own:network'))

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
DATASETS = Registry({
    'cifar10': 'cifar10.data.cifar:CIFAR10',
    'cifar100': 'cifar10.data.cifar:CIFAR100',
    'cifar100-coarse': 'cifar10.data.cifar:CIFAR100_COARSE',
    'shapes': 'cifar10.data.shapes:SHAPES'}, Own('FOLDER/', r'.*/.*', 'cifar10.data.folders:dataset'))

# An `optim.precision.Precision`.
PRECISIONS = Registry({
    'fp32': 'cifar10.optim.precision:FP32',
    'bf16': 'cifar10.optim.precision:BF16',
    'fp16': 'cifar10.optim.precision:FP16'})
AUTO = 'auto'  # the precision that the hardware is fastest in
