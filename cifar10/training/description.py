"""Describes a run before its first step."""
import os
import shlex

from cifar10.base.console import Line
from cifar10.base.registry import DATASETS
from cifar10.data import SIZE
from cifar10.model.class_weights import are_uneven
from cifar10.run import metrics
from cifar10.settings.presets import CLASSIC, PRESETS, default_rate
from cifar10.settings.training import TrainSettings
from cifar10.training.plan import Plan

_WARM_UP_FROM = 4  # times the examples of the default rate
_WARM_UP_EPOCHS = 5
_MOST_CLASSES = 10  # shown with numbers
_WARM_UP_FRACTION = 0.1  # maximum, of the run


def describe(plan: Plan) -> list[Line]:
    """Returns the lines that describe the training before the first step."""
    settings = plan.settings
    recipe, towers = settings.recipe, settings.towers
    examples = plan.examples_per_step
    each = f' ({towers.batch_size:,} of each tower)' if plan.mode.batches > 1 else ''
    every = 'step' if towers.local_steps == 1 else f'{towers.local_steps} steps, more often at the start'
    averages = f', averaged every {every}' if towers.local_steps else ''
    rate = [] if plan.recipe.is_whole else [
        Line('rate', f'{recipe.learning_rate:g}, '
                     f'{plan.recipe.schedule.describe(examples, plan.examples_at(plan.last_step))}')]
    epoch = f'; {plan.source.count / examples:.1f} steps an epoch' if plan.source.count else ''
    before = ''
    if plan.record and plan.record.groups not in (None, len(plan.devices.groups)):
        before = f'; the run used {plan.record.groups} before'
    servers = [server for server in plan.devices.servers if '/job:ps' in server]
    idle = []
    if servers and plan.mode.has_copies:
        idle = [Line('idle', f'{len(servers)} ps, because {towers.variable_update} keeps a copy of the variables on '
                             'each device; leave out --ps_hosts')]
    return [Line('recipe', f'{plan.recipe}, {towers.precision}'),
            Line('towers', f'{plan.devices.num_towers} on {plan.devices}{before}'),
            Line('update', f'{towers.variable_update}{averages}'),
            Line('data', str(plan.source)),
            *_classes(plan),
            Line('batch', f'{examples:,} a step{each}{epoch}'),
            *rate, *idle]


def _classes(plan):
    """Returns lines about the images and the weights of the classes, if they differ much."""
    weights, counts, classes = plan.recipe.weights, plan.source.class_counts, plan.source.classes
    if weights is None and not (counts and are_uneven(counts)):
        return []
    order = sorted(range(len(counts)), key=lambda label: -counts[label])
    shown = order if len(order) <= _MOST_CLASSES else [*order[:_MOST_CLASSES // 2], *order[-_MOST_CLASSES // 2:]]
    of = '' if shown is order else f' (the largest and the smallest of {len(order)})'
    if weights is not None:
        text = ', '.join(f'{classes[label]} {weights[label]:.3g}' for label in shown)
        return [Line('weights', f'in the loss: {text}{of}')]
    text = ', '.join(f'{classes[label]} {counts[label]:,}' for label in shown)
    remedy = '' if plan.recipe.is_whole else '; --class_weights=balanced gives all classes equal weight'
    return [Line('uneven', f'{text}{of} images{remedy}')]


def advise(plan: Plan, given: TrainSettings) -> list[Line]:
    """Returns lines that suggest different settings for a new run."""
    if plan.checkpoint:
        return []
    lines = [*_advise_rates(plan, given.recipe), *_advise_preset(plan)]
    if given.run.patience and not given.reports.keep_best:
        lines.append(Line('advice', '--patience ends the run after its best evaluation; --keep_best keeps that model'))
    return lines


def _advise_preset(plan):
    """Suggests the preset for photos if a run on the user's own images has CIFAR-10's size and length."""
    data, is_of_images = plan.settings.data, bool(plan.source.classes)
    if not is_of_images or not DATASETS.is_own(data.dataset) or plan.last_step != CLASSIC['max_steps'] or (
            data.image_size != SIZE):
        return []
    return [Line('advice', f'this run takes {plan.last_step:,} steps with {SIZE}x{SIZE} pixels; for photos, use '
                           '--preset=photos')]


def _advise_rates(plan, given):
    """Suggests a rate if the number of examples per step differs from the default rate's.

    Returns no advice if the user gave a rate.
    """
    recipe = plan.settings.recipe
    if plan.recipe.is_whole or given.learning_rate is not None:
        return []
    chosen = default_rate(recipe.preset, recipe.optimizer)
    # An applied gradient has the examples of a whole step, or of one tower.
    examples = plan.settings.towers.batch_size if plan.mode.drifts else plan.examples_per_step
    if examples == chosen.examples:
        return []
    epochs = plan.last_step * plan.examples_per_step / plan.source.count
    to_try = _rates_to_try(recipe.optimizer, chosen, examples, epochs)
    flags = ' '.join(f'--{name}={value:.3g}' for name, value in to_try.items() if not getattr(given, name))
    is_presets = recipe.optimizer == PRESETS[recipe.preset]['optimizer']
    whose = f"the {recipe.preset} recipe's" if is_presets else f"{recipe.optimizer}'s default"
    here = f'{examples:,}' if examples == plan.examples_per_step else f'{examples:,} of each tower'
    return [Line('advice', f'{whose} rate is for {chosen.examples} examples a step; with {here} try {flags}')]


def _rates_to_try(optimizer, chosen, examples, epochs):
    """Returns the settings to try, by name, for a number of examples that the rate was not chosen for.

    Rates of gradient descent, with or without momentum, scale with the number of examples. A much larger rate warms up
    from 0 over the first five epochs (Goyal et al. 2017, https://arxiv.org/abs/1706.02677). Rates of Adam scale with
    the square root (Malladi et al. 2022, https://arxiv.org/abs/2205.10287). Muon's do, too, in the runs of
    benchmarks/README.md with 128 to 1,024 examples.
    """
    factor = examples / chosen.examples
    if optimizer in ('adam', 'adamw', 'muon'):
        return dict(learning_rate=chosen.learning_rate * factor ** 0.5)
    settings = dict(learning_rate=chosen.learning_rate * factor)
    if factor >= _WARM_UP_FROM:
        settings['warmup_epochs'] = min(_WARM_UP_EPOCHS, _WARM_UP_FRACTION * epochs)
    return settings


def describe_run(plan: Plan) -> list[Line]:
    """Returns lines about the progress and the location of the run."""
    run = plan.settings.run
    if plan.ended:
        progress = f'at step {plan.step:,}'
    elif plan.step:
        taken = (metrics.last(run.train_dir, metrics.TRAIN) or {}).get('step', 0)  # or later
        again = f'; the steps {plan.step + 1:,} to {taken:,} are taken again' if taken > plan.step else ''
        progress = f'resumed at step {plan.step:,} of {plan.last_step:,}{again}'
    else:
        progress = f'new, to step {plan.last_step:,}'
    lines = [Line('run', f'{run.train_dir}, {progress}'),
             Line('watch', f'tensorboard --logdir {shlex.quote(os.path.abspath(run.train_dir))}')]
    if plan.ended:
        flag = f'--{plan.ended}'
        remedy = f'a larger {flag} continues it'
        if plan.settings.recipe.planned and plan.step >= plan.last_step:
            remedy = f'in another --train_dir, --warm_start={run.train_dir} starts a new run from its model'
        is_past = plan.step > plan.last_step
        when = f'is at step {plan.step} already, past' if is_past else f'ended at step {plan.step} by'
        lines.append(Line('done', f'nothing to train: the run {when} {flag}={getattr(run, plan.ended):.10g}; {remedy}; '
                                  '--restart begins again'))
    return lines
