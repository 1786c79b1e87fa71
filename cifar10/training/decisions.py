"""Decides on the Plan of a run: its start, number of towers, precision and length.

In a new run, missing settings follow from the preset and the devices. A resumed run keeps its settings.
"""
import math
import os
from collections.abc import Mapping
from typing import Any

from cifar10.base import startup
from cifar10.base.console import Line
from cifar10.base.errors import UsageError
from cifar10.base.graphs import EXAMPLES_SEEN
from cifar10.base.registry import AUTO, CODE, NETWORKS, OPTIMIZERS, OWN, PRECISIONS, UPDATE_MODES
from cifar10.data import datasets
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices
from cifar10.run import checkpoints, takeover
from cifar10.run.ended import ended
from cifar10.run.record import RunRecord, own_sha256
from cifar10.settings.definition import Kind
from cifar10.settings.presets import PRESETS, default_rate
from cifar10.settings.training import TrainSettings
from cifar10.training.plan import Plan, plan_of
from cifar10.training.start import Images, usable_folder
from cifar10.training.warm_start import with_model

_INTERVALS = ('save_steps', 'eval_steps')


def plan(settings: TrainSettings, devices: Devices, images: Images, compares: bool = False) -> tuple[Plan, list[Line]]:
    """Returns the Plan of a run, and lines about the decisions. It calls the functions below in their order.

    Args:
      devices, images: from `start.prepared`; in a cluster, the devices of all workers.
      compares: whether to try a user's own network on random images again when a run resumes.
    """
    folder = usable_folder(settings)
    restored = None if settings.run.restart else _newest_of_run(folder)
    record = folder.record_of(restored.step) if restored else None
    chosen = decided(settings, devices, record.settings.flat() if record else {})
    place = (restored.prefix, restored.step) if restored else (None, 0)
    made = plan_of(chosen, images.train, devices, *place)._replace(
        test=images.test, folder=folder, restored=restored, record=record,
        examples_seen=int(restored.values[EXAMPLES_SEEN]) if restored else 0)
    _refuse_impossible(made, in_numbers=compares or not restored)
    made = _with_length(made)
    made = made._replace(ended=ended(folder.evaluations, chosen, made.step, made.last_step))
    lines = [] if made.ended else _remarks(made, settings, devices)
    made, lines_of_model = with_model(made)
    return made, [*lines, *lines_of_model, *_changed_data(made)]


def _newest_of_run(folder):
    found = checkpoints.newest(lambda: folder)
    if found is None and folder.checkpoints:
        raise UsageError(f'{checkpoints.none_readable(folder)}; {takeover.ANOTHER_RUN}')
    if found and EXAMPLES_SEEN not in found.values:
        raise UsageError(takeover.refuse_others(found.prefix))
    return found


def decided(settings: TrainSettings, devices: Devices, before: Mapping[str, Any]) -> TrainSettings:
    """Returns the settings of a run with a value for each undecided setting.

    The intervals in steps become multiples of `local_steps`. Between two averages the copies of the variables differ,
    so there is no model to save or to evaluate.

    Args:
      before: the stored settings of a resumed run; empty for a new run.
    """
    towers, recipe, count = settings.towers, settings.recipe, len(devices.groups)
    if UPDATE_MODES.load(towers.variable_update).one_tower_per_device:
        if towers.num_towers not in (None, count):
            raise UsageError(f'--num_towers={towers.num_towers} is incompatible with '
                             f'--variable_update={towers.variable_update}, which has one tower on each device, '
                             f'{count} in all; leave it out')
        before = {**before, 'num_towers': count}
    defaults = dict(
        num_towers=count, batch_size=PRESETS[recipe.preset]['batch_size'],
        precision='bf16' if _hardware_has_bf16(devices.on_gpus) else 'fp32',
        learning_rate=None)
    if not OPTIMIZERS.is_own(recipe.optimizer) and not NETWORKS.load(recipe.network).model:
        defaults['learning_rate'] = default_rate(recipe.preset, recipe.optimizer).learning_rate
    given = settings.flat()
    values = {name: before.get(name, default) if given[name] in (None, AUTO) else given[name]
              for name, default in defaults.items()}
    every = towers.local_steps or 1
    return settings.replace(**values, **{name: -(-given[name] // every) * every for name in _INTERVALS})


def _hardware_has_bf16(on_gpus):
    bf16 = PRECISIONS.load('bf16')
    return min(gpus.capabilities()) >= bf16.gpu_capability if on_gpus else not bf16.is_slow()


def _refuse_impossible(plan, in_numbers):
    _refuse_stream(plan)
    if plan.recipe.total_examples == 0:
        raise UsageError(f'--epochs={plan.settings.run.epochs:g} of {plan.source.count:,} images is less than one '
                         'image; give more epochs')
    towers = plan.settings.towers
    plan.recipe.check(towers.batch_size, plan.precision.dtype, in_numbers)
    plan.recipe.check_parts(towers.gpus_per_tower)


def _refuse_stream(plan):
    """Raises a UsageError if the data set does not support the run's position or length."""
    source, data, hosts = plan.source, f'--dataset={plan.settings.data.dataset}', set(plan.devices.hosts)
    if plan.settings.run.epochs and source.count is None:
        raise UsageError(f'--epochs={plan.settings.run.epochs:g} of {data}, whose length is unknown; give --max_steps')
    if not source.is_sequential:
        return
    if plan.examples_seen % source.batch_size:
        before = plan.record.settings.towers.batch_size
        raise UsageError(f'--batch_size={source.batch_size} does not divide the {plan.examples_seen} examples that the '
                         f'run has seen, so no batch begins there; use --batch_size={before}')
    if len(hosts) > 1 and source.needs_this_process:
        raise UsageError(f'{data} calls Python functions (as from_generator and tf.py_func do), which other workers '
                         'cannot run; use TensorFlow operations, or one machine')
    if len(hosts) > 1 and not plan.mode.synchronous:
        raise UsageError(f'--variable_update={plan.settings.towers.variable_update} takes batches in any order, but '
                         f'{data} gives each worker its own in turn; use parameter_server or replicated')


def _with_length(plan):
    """Returns a plan with the last step computed from the remaining examples, if its length is in epochs."""
    if plan.recipe.total_examples is None:
        return plan
    remaining = max(plan.recipe.total_examples - plan.examples_at(plan.step), 0)
    return plan._replace(last_step=plan.step + math.ceil(remaining / plan.examples_per_step))


def _remarks(plan, given, devices):
    """Returns lines about the decisions, if steps remain; the towers may not use all `devices`."""
    settings, record = plan.settings, plan.record
    changes = record.difference_to(takeover.chosen(settings, Kind.NOTED)) if record else {}
    return [*_warning_of_slow_precision(settings.towers, devices),
            *([Line('changed', ', '.join(changes.values()), note=True)] if changes else []),
            *_other_numerics(record, devices),
            *_unused_devices(settings.towers, devices),
            *(record.code_changes(**_own_code(settings)) if record else []),
            *_rounded_intervals(given, settings), *plan.recipe.warnings]


def _own_code(settings):
    return {flag: name for flag in CODE if OWN[flag].is_code(name := settings.flat()[flag])}


def _warning_of_slow_precision(towers, devices):
    if devices.on_gpus or not PRECISIONS.load(towers.precision).is_slow():
        return []
    return [Line('warning', f'--precision={towers.precision} is slow on this CPU; --precision=fp32 is faster')]


def _other_numerics(record, devices):
    changes = record.other_numerics(startup.numerics(), startup.versions(devices.on_gpus)) if record else []
    if not changes:
        return []
    return [Line('changed', f"{', '.join(changes)}: from this step on, the bits differ from a run without "
                            'the change', note=True)]


def _unused_devices(towers, devices):
    lines = []
    count, per_tower = len(devices.groups), towers.gpus_per_tower
    if towers.num_towers < count:
        kind = 'devices' if per_tower == 1 else f'groups of {per_tower} devices'
        lines.append(Line('idle', f'{count - towers.num_towers} of {count} {kind}; --num_towers={count} would use '
                                  'them'))
    if max(towers.num_towers // count, 1) < per_tower:  # towers of a group of devices
        why, remedy = 'too few towers fill the gaps', f'; --num_towers={per_tower * count} or more would'
        if UPDATE_MODES.load(towers.variable_update).one_tower_per_device:
            why, remedy = f'{towers.variable_update} has only one tower on them', ''
        lines.append(Line('gaps', f'the {per_tower} devices of a tower wait for each other, because {why}{remedy}'))
    return lines


def _rounded_intervals(given, settings):
    changes = [f'--{name} from {before} to {now}' for name in _INTERVALS
               if (before := getattr(given.reports, name)) != (now := getattr(settings.reports, name))]
    every = settings.towers.local_steps
    if not changes:
        return []
    return [Line('rounded', f"{', '.join(changes)}: the next multiple of --local_steps={every}", note=True)]


def _changed_data(plan):
    """Returns lines about changed images of a resumed run, which needs the same classes and number of images.

    The user may have repaired images. Only the classes are known for unread images of a user. For other data, the
    first batch is known.
    """
    folder, record = plan.folder, plan.folder.record
    if not plan.checkpoint:
        return []
    if plan.source.is_sequential:
        now = dict(images_sha256=plan.source.facts['images_sha256'], batch_size=plan.source.batch_size)
        return [] if record.difference_to(now).keys() != {'images_sha256'} else [
            Line('warning', f'--dataset={plan.settings.data.dataset}: the first batch differs from the last start, so '
                            'the next steps see different examples; set a seed, as in dataset.shuffle(1000, seed=0)')]
    data = plan.source.images
    where, remedy = folder.given, takeover.remedy(folder, warm_start=True)
    record.refuse_another(dict(classes=data.classes), where, remedy)
    if not os.path.isdir(data.folder):
        return []
    record.refuse_another(dict(examples=data.count), where, remedy)
    digests = {'training': dict(images_sha256=data.digest), 'test': dict(test_sha256=plan.test.digest)}
    if data.dataset.endswith(datasets.ARRAYS):  # never repaired
        record.refuse_another({**digests['training'], **digests['test']}, where, remedy)
    return [Line('changed', f'the {part} images: other files, or other contents', note=True)
            for part, digest in digests.items() if record.difference_to(digest)]


def record_of(plan: Plan) -> RunRecord:
    """Returns the record of a start, with absolute data paths."""
    settings = plan.settings.replace(data_dir=os.path.abspath(plan.settings.data.data_dir))
    devices, taken = plan.devices, plan.first_values
    return RunRecord(
        settings, step=plan.step, last_step=plan.last_step, **plan.source.facts,
        test_sha256=plan.test.digest if plan.test else None,
        code_sha256={flag: own_sha256(OWN[flag], name) for flag, name in _own_code(settings).items()},
        warm_start_sha256=checkpoints.digest_of(taken) if taken else None,
        devices=tuple(devices.place(k) for k in range(devices.num_towers)), groups=len(devices.groups),
        numerics=startup.numerics(), versions=startup.versions(devices.on_gpus))
