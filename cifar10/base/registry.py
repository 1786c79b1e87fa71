"""Registries of the objects that flags name: update modes, networks, optimizers, data sets, precisions and more.

An entry is 'module:object'. The module is imported on first use, so `--help` and mistyped flags need no TensorFlow.
"""
import pkgutil
import re
from typing import Any, NamedTuple


class Own(NamedTuple):
    """A form of names for users' objects, such as a network in a file.

    Attributes:
      form: the form in messages: 'FILE.py:FUNCTION'.
      pattern: a regular expression that matches such names.
      load: 'module:function' of a function that takes the name and returns the object.
      check: 'module:function' of a function that takes the name and the arguments of `Registry.check`, and raises a
        UsageError if the object breaks a rule; it may return warnings. None for no check.
      follows: whether the name follows an entry and a comma.
    """
    form: str
    pattern: str
    load: str
    check: str | None = None
    follows: bool = False


class Registry(dict):
    """Maps names to 'module:object'; `load` returns the object.

    Args:
      entries: {name: 'module:object'}.
      own: the forms of names for users' objects; the first match counts.
    """

    def __init__(self, entries: dict[str, str], *own: Own):
        super().__init__(entries)
        self._own = own

    def _form_of(self, name):
        """Returns the `Own` of a name; None for registered and for unknown names."""
        for form in self._own if not super().__contains__(name) else ():
            entry, _, own = name.partition(',') if form.follows else (None, '', name)
            if entry in (None, *self) and re.fullmatch(form.pattern, own):
                return form
        return None

    def is_own(self, name: str) -> bool:
        """Returns whether a name refers to a user's object."""
        return self._form_of(name) is not None

    def is_code(self, name: str) -> bool:
        """Returns whether a name refers to a function in a user's file."""
        return self.is_own(name) and self._form_of(name).pattern == _IN_A_FILE

    def divided(self, name: str) -> tuple[str, str]:
        """Splits a name into (entry, user's object); either may be ''."""
        if not self.is_own(name):
            return name, ''
        entry, _, own = name.partition(',') if self._form_of(name).follows else ('', '', name)
        return entry, own

    def __contains__(self, name):
        return super().__contains__(name) or self.is_own(name)

    @property
    def forms(self) -> list[str]:
        """The registered names, and the forms of users' objects, for help texts and messages."""
        return [*self, *(form.form for form in self._own)]

    def load(self, name: str) -> Any:
        """Returns the registered object, or the user's object.

        Raises:
          KeyError: the name is neither registered nor in the form of a user's object.
        """
        if self.is_own(name):
            return pkgutil.resolve_name(self._form_of(name).load)(name)
        return pkgutil.resolve_name(self[name])

    def check(self, name: str, *arguments: Any) -> list[str] | None:
        """Returns the result of `Own.check` for a user's object; None for a registered name."""
        return pkgutil.resolve_name(self._form_of(name).check)(name, *arguments) if self.is_own(name) else None


_FUNCTION, _IN_A_FILE = 'FILE.py:FUNCTION', r'.*\.py:\w+'

# A `parallel.update.UpdateMode`.
UPDATE_MODES = Registry({
    'parameter_server': 'cifar10.parallel.parameter_server:ParameterServer',
    'replicated': 'cifar10.parallel.replicated:Replicated',
    'async': 'cifar10.parallel.asynchronous:Asynchronous',
    'local': 'cifar10.parallel.local_steps:Local',
    'mirrored': 'cifar10.parallel.mirrored:Mirrored'})

# The builders of towers with user code: of networks, augmentations and losses, and of model functions.
OWN_TOWERS = 'cifar10.own.recipe_towers:RecipeTowers'
MODEL_TOWERS = 'cifar10.own.model_towers:ModelTowers'

# A `model.Network`.
NETWORKS = Registry({
    'classic': 'cifar10.model.classic:NETWORK',
    'fast': 'cifar10.model.fast:FAST',
    'photos': 'cifar10.model.fast:PHOTOS'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.recipe_towers:network'))

# A function (learning rate) -> `tf.train.Optimizer`; muon also takes an auxiliary learning rate, adamw a weight decay.
OPTIMIZERS = Registry({
    'sgd': 'cifar10.model.optimizers:sgd',
    'momentum': 'cifar10.model.optimizers:momentum',
    'nesterov': 'cifar10.model.optimizers:nesterov',
    'muon': 'cifar10.model.optimizers:Muon',
    'adam': 'cifar10.model.optimizers:Adam',
    'adamw': 'cifar10.model.optimizers:AdamW'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.optimizer:optimizer', 'cifar10.own.optimizer:check'))

# A function (logits float32 [n, classes], labels int32 [n]) -> the loss of each example, float32 [n].
LOSSES = Registry({
    'cross_entropy': 'cifar10.model.classifier:cross_entropies'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.recipe_towers:loss'))

# A `model.schedule.Schedule`.
SCHEDULES = Registry({
    'staircase': 'cifar10.model.schedule:Staircase',
    'linear': 'cifar10.model.schedule:Linear',
    'cosine': 'cifar10.model.schedule:Cosine'})
# Schedules that reach 0 at the end of the run, so its length is a fixed number of epochs.
TO_THE_END = frozenset({'linear', 'cosine'})

# A `data.augment.Augmentation`.
AUGMENTATIONS = Registry({
    'classic': 'cifar10.data.augment:Classic',
    'shift': 'cifar10.data.shift:Shift',
    'resized_crop': 'cifar10.data.photos.resized_crop:ResizedCrop',
    'none': 'cifar10.data.augment:Augmentation'},
    Own(f'NAME,{_FUNCTION}', _IN_A_FILE, 'cifar10.own.recipe_towers:augmentation', follows=True))

# A `data.datasets.Dataset`; for a user's function, a function (batch size, seed, mode) -> `own.batches.Batches`.
DATASETS = Registry({
    'cifar10': 'cifar10.data.cifar:CIFAR10',
    'cifar100': 'cifar10.data.cifar:CIFAR100',
    'shapes': 'cifar10.data.shapes:SHAPES'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.batches:batches'),
    Own('FOLDER/ or FILE.npz', r'.*/.*|.*\.npz', 'cifar10.data.own_images:dataset'))

# Settings that may name a user's object -> registry.
OWN = dict(dataset=DATASETS, network=NETWORKS, optimizer=OPTIMIZERS, augmentation=AUGMENTATIONS, loss=LOSSES)
CODE = 'dataset', 'network', 'optimizer', 'augmentation', 'loss'  # settings that may name a user's code

# A `model.precision.Precision`.
PRECISIONS = Registry({
    'fp32': 'cifar10.model.precision:FP32',
    'bf16': 'cifar10.model.precision:BF16',
    'fp16': 'cifar10.model.precision:FP16'})
AUTO = 'auto'  # the fastest precision on the hardware
