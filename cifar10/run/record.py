"""Records a start of a run: its settings, images, devices and software.

Settings may change at each start. config.json holds the newest record; metrics.jsonl has a record of kind `start` for
each start that took some of the run's steps.
"""
import json
import os
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple

from cifar10.base import installed, own_files
from cifar10.base.console import Line
from cifar10.base.errors import UsageError, difference, listed
from cifar10.base.registry import OWN, Registry
from cifar10.settings.definition import checked, fields
from cifar10.settings.training import GROUPS, TrainSettings, completed, flags_of

_OF_BITS = 'TensorFlow', 'CPU', 'GPU'  # recorded versions that affect the bits of results
_MEND = 'correct it, use the version that wrote it, or use another directory'


class RunRecord(NamedTuple):
    """A start of a run. The tutorial's scripts recorded nothing, so only their settings are known.

    Attributes:
      settings: all settings, with the number of towers, the batch size, the rate and the precision of the start.
      run_id: a random string that identifies the run, `run` in config.json; None in a record of metrics.jsonl.
      step: the restored step; 0 for a new run.
      last_step: the run's planned last step.
      images_folder: the name of the image folder, without its path.
      images_sha256, test_sha256: `ImageFiles.digest` of the training and the test images; for a user's own data set,
        the digest of its first batch, and None.
      code_sha256: flag -> `own_files.sha256` of the user's code file that the flag names.
      warm_start_sha256: digest of the variables that a new run took from another model; None if it took none.
      devices: the place of each tower, as `Devices.place` names it.
      groups: number of device groups of the towers.
      numerics: other factors that affect the bits of the results, from `startup.numerics`; None if unknown.
      versions: name -> version of this package, Python, TensorFlow and NumPy, and the model of the processor or GPUs.
    """
    settings: TrainSettings
    run_id: str | None = None
    step: int = 0
    last_step: int | None = None
    classes: tuple[str, ...] | None = None
    examples: int | None = None
    images_folder: str | None = None
    images_sha256: str | None = None
    test_sha256: str | None = None
    code_sha256: Mapping[str, Mapping[str, str | None]] | None = None
    warm_start_sha256: str | None = None
    devices: tuple[str, ...] = ()
    groups: int | None = None
    numerics: Mapping[str, str] | None = None
    versions: Mapping[str, str] | None = None

    @classmethod
    def parse(cls, values: Mapping[str, Any], path: str) -> 'RunRecord':
        """Returns the record from the values of the file at `path`, as `to_json` returned them; ignores the rest."""
        facts = {name: values[name] for name in cls._fields if name in values}
        facts['run_id'] = values.get('run')
        settings, given = facts.pop('settings', {}), values.get('given', {})
        for each in (settings, given):
            if not isinstance(each, dict):
                raise UsageError(f'{path} has no settings, but {json.dumps(each)[:40]}; {_MEND}')
        missing = [name for name in (*cls._fields, 'given') if name not in values and name != 'run_id'] + [
            field.name for field in fields(*GROUPS) if field.name not in settings]
        if missing:
            raise UsageError(f'{path} lacks {listed(missing)}, so another version of this program wrote it; use that '
                             'version, or another directory')
        try:
            checked(GROUPS, {field.name: value for field in fields(*GROUPS)
                             if (value := settings[field.name]) is not None})
            checked(GROUPS, given)
        except UsageError as error:
            raise UsageError(f'{path} has a setting that this version does not accept: {error}; {_MEND}') from error
        facts.update({name: tuple(facts[name]) for name in ('classes', 'devices') if facts[name] is not None})
        return cls(completed(settings, given), **facts)

    def to_json(self) -> dict[str, Any]:
        """Returns the record, without the run's identity, and the run's command, as JSON values."""
        values = dict(self._asdict(), settings=self.settings.flat(), given=dict(self.settings.given),
                      command=self.command())
        del values['run_id']
        return values

    def command(self) -> str:
        """Returns the shell command that resumes the run from any directory."""
        train_dir = shlex.quote(os.path.abspath(self.settings.run.train_dir))
        return ' '.join([installed.command('train', True), f'--train_dir={train_dir}', *flags_of(self.settings)])

    def flat(self) -> dict[str, Any]:
        """Returns all settings and other facts by name, without the run's identity and place."""
        values = self._asdict()
        values = {**values.pop('settings').flat(), **values}
        return {name: value for name, value in values.items() if name not in ('run_id', 'train_dir')}

    def difference_to(self, now: Mapping[str, Any]) -> dict[str, str]:
        """Returns phrases such as 'seed=0 (now 5)', by name, for recorded values that differ now.

        Args:
          now: names as in `flat` -> values. Names missing from the record are ignored.
        """
        before = self.flat()
        return {name: _phrase(name, before[name], value) for name, value in now.items()
                if name in before and _identity(name, before[name]) != _identity(name, value)}

    def other_numerics(self, numerics: Mapping[str, str], versions: Mapping[str, str]) -> list[str]:
        """Returns phrases, like `difference_to`, for changes to the numerics on the same devices."""
        if self.numerics is None or self.versions is None:
            return []
        common = [name for name in _OF_BITS if name in self.versions and name in versions]
        before, now = ({**{name: each[name] for name in common}, **others}
                       for each, others in ((self.versions, self.numerics), (versions, numerics)))
        return [_phrase(name, before.get(name), now.get(name)) for name in {**before, **now}
                if before.get(name) != now.get(name)]

    def refuse_another(self, now: Mapping[str, Any], where: str, remedy: str) -> None:
        """Raises a UsageError if `difference_to` finds a recorded value that differs; `where` is `Folder.given`."""
        if changes := self.difference_to(now):
            raise UsageError(f"{where} holds a run with {', '.join(changes.values())}; {remedy}")

    def code_changes(self, **names: str) -> list[Line]:
        """Returns a warning for each of the user's own files (`registry.CODE`) that changed since its last use."""
        lines = []
        for flag, name in names.items():
            path, _, function = OWN[flag].divided(name)[1].rpartition(':')
            other = own_files.changed(path, (self.code_sha256 or {}).get(flag, {}))
            if function != OWN[flag].divided(self.settings.flat()[flag])[1].rpartition(':')[2]:
                other.append('function')
            if other:
                lines.append(Line('warning', f'--{flag}={name}: the run was last trained with a different '
                                             f"{', '.join(other)}"))
        return lines


def _phrase(name, before, now):
    """Formats the change of a recorded value for a message; None is a setting that was not given."""
    if name == 'classes':
        return f'other classes (now {difference(before, now)})'
    shown = [str(value)[:12] if name.endswith('sha256') else str(value) for value in (before, now)]
    was = f'no {name}' if before is None else f'{name}={shown[0]}'
    return f"{was} (now {'none' if now is None else shown[1]})"


def _identity(name, value):
    """Returns the part of a value that identifies the run, because the user may have moved files."""
    if name in OWN and OWN[name].is_own(value):
        # FILE.py:FUNCTION without its folder; for images, the classes and their number are recorded.
        entry, own = OWN[name].divided(value)
        return (entry, os.path.basename(own)) if OWN[name].is_code(value) else 'images of your own'
    return value


def own_sha256(registry: Registry, name: str) -> dict[str, str | None]:
    """Returns the `own_files.sha256` of the user's code file that a name refers to."""
    path = registry.divided(name)[1].rpartition(':')[0]
    if path not in own_files.executed:  # the run uses the executed code, even if the file changes
        registry.load(name)
    return own_files.sha256(path)
