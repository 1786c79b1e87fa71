"""Replays steps of a run in memory, from a checkpoint or from step 0, with the settings that each step had.

It builds the graph that training builds and fetches what training fetches, so the variables come out the same, to the
bit. It writes nothing into the train_dir and takes no lock, so the run may continue meanwhile.
"""
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.registry import CODE, UPDATE_MODES
from cifar10.data import records
from cifar10.parallel import gpus, session_config
from cifar10.parallel.devices import choose
from cifar10.run import checkpoint, metrics, saved, trust
from cifar10.run.folder import Folder, exists, step_of
from cifar10.run.record import RunRecord
from cifar10.run.reporter import summary_due
from cifar10.training import warm_start
from cifar10.training.plan import Plan, plan_of
from cifar10.training.run import Run, name_of_tower


class Taken(NamedTuple):
    """A replayed step.

    Attributes:
      step: its number.
      losses: float32 [towers], each tower's total loss.
      figures: of its record in metrics.jsonl: loss, learning_rate, accuracy.
      before, after: all variables by their names, before and after the step, with what the run did before the next
        one; None unless wanted. Where towers have copies of their own, those are among them: `name_of_tower`.
      saved: the names of the variables that a checkpoint holds.
    """
    step: int
    losses: np.ndarray
    figures: dict[str, float]
    before: dict[str, np.ndarray] | None
    after: dict[str, np.ndarray] | None
    saved: list[str]

    def read_by(self, k: int) -> dict[str, np.ndarray]:
        """Returns the variables that tower k read in the step, by their names."""
        return {name: self.before.get(name_of_tower(k, name), self.before[name]) for name in self.saved}


class Segment(NamedTuple):
    """Steps that one start of the run took.

    Attributes:
      start: the record of the start.
      first, last: the first and the last of the steps.
      plan: how they are taken here.
    """
    start: RunRecord
    first: int
    last: int
    plan: Plan


class Rerun:
    """Steps of a run, to be replayed.

    Args:
      folder: of the run.
      last: the last step.
      first: the first step whose variables are wanted; default: none are.
      start: prefix of the checkpoint to start from; default: the newest before `first` (or `last`), or the initial
        values where there is none.
      lead: the number of steps before `first` whose variables are wanted too, as far as these steps are replayed.
      tower_device: 'gpu', 'cpu', or 'auto': devices of the kind that the run had, where this machine has them.
      network, optimizer, loss, dataset: new locations of the user's own files; default: those that the run recorded.
      data_dir: directory of the data set; default: the run's.

    Attributes:
      folder, last: as given.
      first: the first step whose variables are wanted; None if none are.
      start: the checkpoint that it starts from; None for the initial values.
      step: the step that the first one follows.
      segments: the steps from there to the last, divided by the starts of the run that took them.
      data: the training images.

    Raises:
      UsageError: the steps cannot be replayed.
    """

    def __init__(self, folder: Folder, last: int, first: int | None = None, start: str | None = None, *, lead: int = 0,
                 tower_device: str = 'auto', network: str | None = None, optimizer: str | None = None,
                 loss: str | None = None, dataset: str | None = None, data_dir: str | None = None):
        record, started = folder.record, folder.started
        if record is None:
            raise UsageError(f'--train_dir={folder.path} holds no run of this program, so there is nothing to '
                             'replay; name the train_dir of a run')
        if dataset is None:
            record.refuse_moved_images(folder.path)
        _refuse_unrecorded(folder, started, last)
        self.folder = folder
        self.last = last
        self.start = _starting_point(folder, last if first is None else first, start, started[0].step)
        self.step = self.start.step if self.start else 0
        self.first = None if first is None else max(first - lead, self.step + 1)
        settings = trust.located(
            record, folder.path, network=network, optimizer=optimizer, loss=loss, dataset=dataset).settings
        locations = dict(**{flag: getattr(settings.recipe, flag) for flag in CODE}, dataset=settings.data.dataset,
                         data_dir=data_dir or settings.data.data_dir, log_device_placement=False)
        divided = _divided(started, self.step + 1, last)
        _refuse_without_order([each for each, *_ in divided], folder.path)
        devices = [_devices_of(each, tower_device) for each, *_ in divided]
        gpus.claim(max(each.num_gpus for each in devices))
        if any(each.settings.towers.deterministic for each, *_ in divided):
            session_config.turn_on_determinism()
        self.data = records.prepared(settings.replace(**locations).data)
        record.refuse_another(dict(classes=self.data.classes, examples=self.data.count),
                              f'--train_dir={folder.path}', 'name its data set with --dataset or --data_dir')
        # All plans before the first graph, because `tf.distribute` asks for its devices before TensorFlow makes any.
        self.segments = [Segment(part, begin, end, _plan(part, locations, part_devices, self.data, begin - 1, end))
                         for (part, begin, end), part_devices in zip(divided, devices)]

    def segment_of(self, step: int) -> Segment:
        """Returns the Segment of a step."""
        return next(segment for segment in self.segments if segment.first <= step <= segment.last)

    def steps(self) -> Iterator[Taken]:
        """Replays the steps; from the first wanted one on, each has its variables.

        Raises:
          UsageError: the checkpoint belongs to another network, or the run ended before the last step.
        """
        values = self.start.values if self.start else None
        for segment in self.segments:
            run = Run(segment.plan, is_new=values is None)
            if self.start and (found := checkpoint.misfit(self.start.shapes, run.saved)):
                raise UsageError(f'{self.start.prefix} {found}; use the checkpoint and the network of the same run')
            with run.opened(values):
                for step in range(segment.first, segment.last + 1):
                    taken = self._take(run, step)
                    yield taken
                    if step < self.last and not np.all(np.isfinite(taken.losses)):
                        raise UsageError(f'the run never took step {self.last}: the loss of step {step} is not '
                                         f'finite, which ends a run; give --step={step}')
                values = run.variables()

    def _take(self, run, step):
        """Takes a step, and the average that the run made after it, if any."""
        wanted = self.first is not None and step >= self.first
        run.go_on()
        before = run.variables() if wanted else None
        # What is fetched decides what TensorFlow fuses, so the summary is fetched where training fetches it.
        is_due = summary_due(run.plan.settings.reports.summary_steps, step - 1, step)
        results = run.take(dict(summary=run.graph.summary) if is_due else None)
        assert run.step == step, f'step {run.step} was taken for step {step}'
        scheduled = run.averages_after(step)
        # A run of local steps averages before each save, also where it was stopped off its schedule of averages.
        if scheduled or (run.graph.average and step in self.folder.recorded):
            run.average(scheduled)
        after = run.variables() if wanted else None
        figures = {name: float(figure) for name, figure in results['figures'].items()}
        return Taken(step, results['losses'], figures, before, after, list(run.saved))


# What is decided before any graph is built.

def _refuse_unrecorded(folder, started, step):
    """Raises a UsageError if a run cannot have taken a step as far as its records show, or has recorded no start."""
    if not started:
        raise UsageError(f'{os.path.join(folder.path, metrics.NAME)} has no record of a start, so the steps cannot be '
                         'repeated; if this is a copy of a run, copy that file too')
    latest, every = started[-1], started[-1].settings.reports.log_frequency
    recorded = max([latest.step, *map(step_of, folder.checkpoints), *folder.recorded, *(
        record['step'] for record in metrics.read(folder.path, metrics.TRAIN))])
    # There is a record of every n-th step: what lies behind the last one came at most to the next.
    last = min((recorded // every + 1) * every, latest.last_step)
    if step > last:
        raise UsageError(f'the run in {folder.path} got to step {last} at most; give that step or an earlier one')


def _starting_point(folder, first, given, known_from):
    """Returns the checkpoint from which step `first` is replayed, as `saved.Saved`, or None for the initial values.

    Args:
      folder: of the run.
      first: the step.
      given: prefix of a checkpoint that the user gives, or None.
      known_from: the step after which the records begin.
    """
    if first <= known_from:
        raise UsageError(f'the records of the run in {folder.path} begin after step {known_from}; give a later '
                         'step')
    if given:
        found = saved.named('from', given)
        if not known_from <= found.step < first:
            raise UsageError(f'--from={given} is from step {found.step}, but step {first} can be replayed only from '
                             f'step {known_from} to {first - 1}; give a checkpoint of these, or leave out --from')
        return found
    # The tutorial's are of the step after the one in their names.
    for prefix in (each for each in reversed(folder.checkpoints) if known_from - 1 <= step_of(each) < first):
        try:
            found = saved.read(prefix)
            if known_from <= found.step < first:
                return found
        except (saved.Unreadable, UsageError) as error:
            if exists(prefix):  # otherwise training has removed it, as one too many
                say('warning', f'{prefix} cannot be read ({error}); starting from the one before it')
    if known_from > 0:
        raise UsageError(f'no checkpoint of step {known_from} to {first - 1} is kept in {folder.path}, and the records '
                         f'begin after step {known_from}; give one with --from, or a later step')
    return None


def _divided(started, first, last):
    """Returns (start, first step, last step) of each start that took some of the steps from `first` to `last`."""
    ends = [following.step for following in started[1:]] + [last]
    parts = [(start, max(start.step + 1, first), min(end, last)) for start, end in zip(started, ends)]
    return [part for part in parts if part[1] <= part[2]]


def _refuse_without_order(starts, path):
    """Raises a UsageError if the steps of a start have no order in which they can be replayed."""
    for start in starts:
        mode = start.settings.towers.variable_update
        if not UPDATE_MODES.load(mode).synchronous:
            raise UsageError(f'the run in {path} took the steps after {start.step} with --variable_update={mode}, '
                             'whose updates have no fixed order, so they cannot be replayed; train in another '
                             'update mode to replay steps')


def _devices_of(start, kind):
    """Returns the devices of this machine on which the towers of a start are replayed."""
    towers = start.settings.towers
    # A strategy adds the gradients device by device, so their number matters. All other towers share one group.
    groups = start.groups if UPDATE_MODES.load(towers.variable_update).uses_strategy else 1
    count = groups * towers.gpus_per_tower
    if kind == 'auto':
        kind = 'gpu' if start.on_gpus and gpus.count() >= count else 'cpu'
    if kind == 'gpu' and 0 < gpus.count() < count:
        raise UsageError(f'--tower_device=gpu: the steps were taken on {count} GPUs, and {gpus.available()}; use '
                         '--tower_device=cpu')
    return choose(count, kind, towers.gpus_per_tower)


def _plan(start, locations, devices, data, step, last):
    """Returns the Plan of the steps after `step` up to `last`."""
    settings = start.settings.replace(**locations, xla=start.settings.towers.xla and devices.on_gpus)
    plan = plan_of(settings, data, devices, step=step)._replace(last_step=last)
    prefix = plan.settings.run.warm_start
    if plan.step or not prefix:
        return plan
    if not exists(prefix):
        raise UsageError(f'the run began with --warm_start={prefix}, which no longer exists; give a step after a '
                         'checkpoint that is kept, or an earlier checkpoint with --from')
    variables = plan.recipe.variables(settings.towers.batch_size, plan.precision.dtype)
    values, _ = warm_start.fitting(warm_start.find(prefix), variables)
    return plan._replace(first_values=values)
