"""Everything that a flag chooses by name: update modes, networks, optimizers, data sets, precisions and more.

An entry is 'module:object'. The module is imported when the entry is used, so `--help` and a mistyped flag
are answered without TensorFlow.
"""
import pkgutil
import re
from typing import Any, NamedTuple


class Own(NamedTuple):
    """The form in which a user names something of their own instead of an entry, such as a network in a file.

    Attributes:
      form: how it is written, for messages: 'FILE.py:FUNCTION'.
      pattern: a regular expression that matches such names.
      load: 'module:function' of the function that takes the name and returns the object.
      check: 'module:function' of the function that takes the name, and what `Registry.check` is given, and raises a
        UsageError if the object breaks a rule; it may return warnings. None where nothing is checked.
      follows: whether it comes after an entry, whose name and a comma precede it.
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
      own: the forms of names outside `entries` that are accepted too; the first that matches counts.
    """

    def __init__(self, entries: dict[str, str], *own: Own):
        super().__init__(entries)
        self._own = own

    def _form_of(self, name):
        """Returns the `Own` of a name; None for a registered name, and for one of another form."""
        for form in self._own if not super().__contains__(name) else ():
            entry, _, own = name.partition(',') if form.follows else (None, '', name)
            if entry in (None, *self) and re.fullmatch(form.pattern, own):
                return form
        return None

    def is_own(self, name: str) -> bool:
        """Returns whether a name means something of the user's own."""
        return self._form_of(name) is not None

    def is_code(self, name: str) -> bool:
        """Returns whether a name means a function in a file of the user's own."""
        return self.is_own(name) and self._form_of(name).pattern == _IN_A_FILE

    def divided(self, name: str) -> tuple[str, str]:
        """Returns (the entry, what is the user's own) of a name; either may be ''."""
        if not self.is_own(name):
            return name, ''
        entry, _, own = name.partition(',') if self._form_of(name).follows else ('', '', name)
        return entry, own

    def __contains__(self, name):
        return super().__contains__(name) or self.is_own(name)

    @property
    def forms(self) -> list[str]:
        """The registered names, and the form of a user's own if it is accepted, for help texts and messages."""
        return [*self, *(form.form for form in self._own)]

    def load(self, name: str) -> Any:
        """Returns the object that is registered as `name`, or what the user's own name means.

        Raises:
          KeyError: the name is neither registered nor of the form of a user's own.
        """
        if self.is_own(name):
            return pkgutil.resolve_name(self._form_of(name).load)(name)
        return pkgutil.resolve_name(self[name])

    def check(self, name: str, *arguments: Any) -> list[str] | None:
        """Returns what `Own.check` returns for the user's own object of this name; None for a registered name."""
        return pkgutil.resolve_name(self._form_of(name).check)(name, *arguments) if self.is_own(name) else None


_FUNCTION, _IN_A_FILE = 'FILE.py:FUNCTION', r'.*\.py:\w+'

# A `parallel.update.UpdateMode`.
UPDATE_MODES = Registry({
    'parameter_server': 'cifar10.parallel.parameter_server:ParameterServer',
    'replicated': 'cifar10.parallel.replicated:Replicated',
    'async': 'cifar10.parallel.asynchronous:Asynchronous',
    'local': 'cifar10.parallel.local_steps:Local',
    'mirrored': 'cifar10.parallel.mirrored:Mirrored'})

# The towers of a recipe with code of the user's own, on images and on batches of a data set of the user's own.
OWN_TOWERS = 'cifar10.own.recipe_towers:RecipeTowers'
MODEL_TOWERS = 'cifar10.own.model_towers:ModelTowers'

# A `model.Network`.
NETWORKS = Registry({
    'classic': 'cifar10.model.classic:NETWORK',
    'fast': 'cifar10.model.fast:FAST',
    'photos': 'cifar10.model.fast:PHOTOS'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.recipe_towers:network'))

# A function (learning rate) -> `tf.train.Optimizer`; muon's also takes an auxiliary learning rate, adamw's a weight
# decay.
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
# Those that reach 0 at the end of the run: its length is given in epochs and stays as it is.
TO_THE_END = frozenset({'linear', 'cosine'})

# A `data.augment.Augmentation`.
AUGMENTATIONS = Registry({
    'classic': 'cifar10.data.augment:Classic',
    'shift': 'cifar10.data.shift:Shift',
    'resized_crop': 'cifar10.data.photos.resized_crop:ResizedCrop',
    'none': 'cifar10.data.augment:Augmentation'},
    Own(f'NAME,{_FUNCTION}', _IN_A_FILE, 'cifar10.own.recipe_towers:augmentation', follows=True))

# A `data.datasets.Dataset`; of a user's function, a function (batch size, seed, mode) -> `own.batches.Batches`.
DATASETS = Registry({
    'cifar10': 'cifar10.data.cifar:CIFAR10',
    'cifar100': 'cifar10.data.cifar:CIFAR100',
    'shapes': 'cifar10.data.shapes:SHAPES'},
    Own(_FUNCTION, _IN_A_FILE, 'cifar10.own.batches:batches'),
    Own('FOLDER/ or FILE.npz', r'.*/.*|.*\.npz', 'cifar10.data.own_images:dataset'))

# What may be the user's own, by the names of the settings.
OWN = dict(dataset=DATASETS, network=NETWORKS, optimizer=OPTIMIZERS, augmentation=AUGMENTATIONS, loss=LOSSES)
CODE = 'dataset', 'network', 'optimizer', 'augmentation', 'loss'  # those of them that may be code

# A `model.precision.Precision`.
PRECISIONS = Registry({
    'fp32': 'cifar10.model.precision:FP32',
    'bf16': 'cifar10.model.precision:BF16',
    'fp16': 'cifar10.model.precision:FP16'})
AUTO = 'auto'  # stands for the precision in which the hardware is fastest
