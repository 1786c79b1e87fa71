"""Compares replayed steps with the records of the run, and names changes that may explain a difference."""
from cifar10.base.console import Line
from cifar10.base.registry import CODE
from cifar10.base.startup import versions
from cifar10.run import metrics, saved
from cifar10.tools.replay.rerun import Rerun, Taken
from cifar10.training.decide import record_of

_MOST_LISTED = 4  # steps


class Verification:
    """Compares steps with their records in metrics.jsonl, up to the first one that differs.

    Args:
      rerun: takes the steps.
    """

    def __init__(self, rerun: Rerun):
        self._records = {record['step']: record for record in metrics.read(rerun.folder.path, metrics.TRAIN)}
        self._hashes = {record['step']: record['sha256']
                        for record in metrics.read(rerun.folder.path, metrics.CHECKPOINT)}
        self._rerun = rerun
        self._with_loss, self._with_variables = [], []  # the steps that agree with the records
        self._difference = None  # (step, phrase)
        if rerun.start and self._hashes.get(rerun.step) not in (None, saved.digest_of(rerun.start.values)):
            self._difference = rerun.step, f'{rerun.start.prefix} does not have the variables that the run recorded'

    def add(self, taken: Taken) -> None:
        """Compares a step with its records, if there are any.

        A record of a checkpoint has the SHA-256 of the variables after the step. They are compared if they were wanted.
        """
        if self._difference:
            return
        for name, recorded in self._records.get(taken.step, {}).items():
            if name in taken.figures and (found := metrics.rounded(taken.figures[name])) != recorded:
                self._difference = taken.step, f'the run recorded {name} {recorded}, the replay gives {found}'
                return
        if taken.step in self._records:
            self._with_loss.append(taken.step)
        if taken.after is None or taken.step not in self._hashes:
            return
        if saved.digest_of({name: taken.after[name] for name in taken.saved}) != self._hashes[taken.step]:
            self._difference = taken.step, 'the variables differ from those of its checkpoint'
            return
        self._with_variables.append(taken.step)

    def line(self) -> Line:
        """Returns the line that says how the steps compare with their records."""
        if self._difference:
            step, difference = self._difference
            if step == self._rerun.step:
                why = 'it belongs to another run, or its file has changed'
            else:
                segment = self._rerun.segment_of(step)
                why = '; '.join(_changes(segment)) or _no_change(segment)
            return Line('differs', f'step {step}: {difference}; {why}')
        verified = [f'the {what} of {named_steps(steps)}' for what, steps in (
            ('loss', self._with_loss), ('variables', self._with_variables)) if steps]
        if verified:
            return Line('verified', f"as recorded: {', '.join(verified)}")
        steps = named_steps(range(self._rerun.step + 1, self._rerun.last + 1))
        reasons = ''.join(f'; {change}' for segment in self._rerun.segments for change in _changes(segment))
        return Line('unverified', f'there is no record of {steps} in {metrics.NAME}{reasons}')


def named_steps(numbers: list[int] | range) -> str:
    """Returns a phrase that names steps: 'step 10', 'steps 10, 20 and 30', '50 steps from 10 to 500'."""
    if len(numbers) == 1:
        return f'step {numbers[0]}'
    if len(numbers) > _MOST_LISTED:
        return f'{len(numbers)} steps from {numbers[0]} to {numbers[-1]}'
    return f"steps {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


def _changes(segment):
    """Returns what is known to have changed since the run took the steps of a segment, as phrases."""
    plan = segment.plan
    now = record_of(plan).flat()
    compared = [*versions(plan.devices.on_gpus), 'on_gpus', 'threads', 'images_sha256',
                *(f'{flag}_sha256' for flag in CODE),
                *(['warm_start_sha256'] if plan.first_values else []),
                *(['groups'] if plan.mode.uses_strategy else [])]
    others = [f'{name} {value}' for name, value in segment.start.versions.items() if name not in now]  # of a cluster
    return [*segment.start.difference_to({name: now[name] for name in compared}).values(), *others]


def _no_change(segment):
    """Returns a phrase for a difference without any known change."""
    if segment.start.on_gpus and not segment.plan.settings.towers.deterministic:
        return 'GPUs repeat a step to the bit only with --deterministic'
    return ('nothing that the run recorded of its machine has changed, so its files or environment variables may have, '
            'or random operations have no fixed seed, or the hardware makes mistakes')
