"""The starts of a run: the settings, devices and software that its steps were taken with, in records of metrics.jsonl.

Settings may change whenever a run is started again; its config.json holds those of the latest start alone.
"""
import os
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import own
from cifar10.base.errors import UsageError
from cifar10.base.registry import Registry
from cifar10.parallel.devices import Devices
from cifar10.run import metrics
from cifar10.run.train_dir import Stored
from cifar10.run.warm_start import WarmStart
from cifar10.settings.training import TrainSettings, completed


class Started(NamedTuple):
    """A start of a run.

    Attributes:
      step: the step that it went on from; 0 for a new run.
      settings: all settings, with the number of towers, the batch size and the precision of the start.
      last_step: the step that the run was to end after.
      devices: the place of each tower, as `Devices.place` names it.
      groups: how many groups of devices the towers had.
      on_gpus: whether the devices were GPUs.
      threads: the CPUs that the process could use, and so the threads that its operations were divided over.
      versions: name -> version of Python, TensorFlow and NumPy, and the model of the processor or GPUs.
      network_sha256, optimizer_sha256: of the files of the user's own network and optimizer, as `own.sha256` returns
        it; None for others.
      warm_start_sha256: of the variables that a new run took from another model; None if it took none.
      images_sha256: `Records.digest` of the training images.
      classes: the names of their classes.
    """
    step: int
    settings: TrainSettings
    last_step: int
    devices: tuple[str, ...]
    groups: int
    on_gpus: bool
    threads: int
    versions: Mapping[str, str]
    network_sha256: Mapping[str, str] | None = None
    warm_start_sha256: str | None = None
    optimizer_sha256: Mapping[str, str] | None = None
    images_sha256: str | None = None
    classes: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, str]:
        """All that is recorded of the start but its train_dir, as text by its name; of a SHA-256 the first digits."""
        fields = self._asdict()
        fields = {**fields.pop('settings').flat(), **fields.pop('versions'), 'after_step': fields.pop('step'), **fields}
        fields.pop('train_dir')
        for name in ('network_sha256', 'optimizer_sha256'):
            fields[name] = tuple(f'{file}:{sha256[:12]}' for file, sha256 in (fields[name] or {}).items())
        return {name: ' '.join(value) if isinstance(value, tuple) else
                str(value)[:12] if name.endswith('sha256') else str(value) for name, value in fields.items()}


def describe(settings: Mapping[str, Any], devices: Devices, last_step: int,
             warm_start: WarmStart | None = None) -> dict[str, Any]:
    """Returns what the record of a start says beside its step; the names are those of Started.

    Args:
      settings: all settings by their names, as the run stores them.
      devices: those of the towers.
      last_step: the step that the run will end after.
      warm_start: what a new run takes from another model, or None.
    """
    return dict(settings=settings, last_step=last_step,
                devices=[devices.place(k) for k in range(devices.num_towers)], groups=len(devices.groups),
                on_gpus=devices.on_gpus, threads=len(os.sched_getaffinity(0)), versions=versions(devices.on_gpus),
                warm_start_sha256=warm_start.sha256 if warm_start else None)


def read(directory: str) -> list[Started]:
    """Returns the starts of the run in a directory that led to its steps, in their order.

    Raises:
      UsageError: a record has another form.
    """
    try:
        return [of_record(record) for record in metrics.read(directory, metrics.START)]
    except (KeyError, TypeError) as error:
        raise UsageError(f'{os.path.join(directory, metrics.NAME)} has a record of a start that this version cannot '
                         'read; use the version that trained the run') from error


def of_record(record: Mapping[str, Any]) -> Started:
    """Returns the start that a record describes."""
    return Started(record['step'], completed(record['settings']), record['last_step'], tuple(record['devices']),
                   record['groups'], record['on_gpus'], record['threads'], record['versions'],
                   record['settings'].get('network_sha256'), record.get('warm_start_sha256'),
                   record['settings'].get('optimizer_sha256'), record['settings'].get('images_sha256'),
                   tuple(record['settings'].get('classes', ())))


def versions(on_gpus: bool) -> dict[str, str]:
    """Returns the versions of what computes in this process, and the model of the processor or of the GPUs."""
    if on_gpus:
        names = [tf.config.experimental.get_device_details(gpu).get('device_name', gpu.name)
                 for gpu in tf.config.get_visible_devices('GPU')]
    else:
        names = [_processor()]
    return {'Python': platform.python_version(), 'TensorFlow': tf.__version__, 'NumPy': np.__version__,
            'GPU' if on_gpus else 'CPU': ', '.join(sorted(set(names)))}


def _processor():
    """Returns the name of this machine's processor."""
    with open('/proc/cpuinfo') as stream:
        names = [line.partition(':')[2].strip() for line in stream if line.startswith('model name')]
    return names[0] if names else platform.machine()


def own_sha256(registry: Registry, name: str) -> dict[str, str] | None:
    """Returns the `own.sha256` of the file of something of the user's own; None for what is registered."""
    return own.sha256(name.rpartition(':')[0]) if registry.is_own(name) else None


def code_changes(stored: Stored | None, **names: str) -> list[str]:
    """Returns a warning for each of the user's own functions that is not the one that a run last trained with.

    Args:
      stored: what the run stored; None for a new one.
      names: what is used now, by the flags that give it.
    """
    lines = []
    for flag, name in names.items() if stored else ():
        path, _, function = name.rpartition(':')
        other = own.changed(path, getattr(stored, f'{flag}_sha256') or {})
        if function != stored.settings.flat()[flag].rpartition(':')[2]:
            other.append('function')
        if other:
            lines.append(f"warning: --{flag}={name}: the run was last trained with another {', '.join(other)}")
    return lines
