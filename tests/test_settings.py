"""Settings as flags and back, and every possible value of a setting in a resumed run."""
import dataclasses
import os
import random
import shlex

import numpy as np
import pytest

from cifar10 import train
from cifar10.base.errors import UsageError
from cifar10.programs import flags
from cifar10.settings import evaluation
from cifar10.settings.definition import Kind, fields
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.presets import PRESETS, default_rate
from cifar10.settings.training import GROUPS, flags_of, train_settings
from cifar10.training.resolved import resolve
from tests.helpers import as_given, planned
from tests.test_continued import write_config

DRAWS = 1000  # a third of the combinations are valid
# name of a setting -> its possible values. A third of the settings is drawn.
VALUES = dict(
    preset=['classic', 'fast', 'photos'], network=['classic', 'fast', 'photos', '/a b/n.py:f'],
    optimizer=['sgd', 'momentum', 'adam', 'adamw', 'muon', '/o.py:f'],
    learning_rate=[1e-5, 0.1, 0.2, 1, 0.001, 3.3333333333333e-7],
    weight_decay=[0.01, 0.0, 0.1], clip_norm=[0.0, 1.0, 2.5, 1e-7], schedule=['staircase', 'linear', 'cosine'],
    warmup_epochs=[0.0, 1.0, 1 / 3], augmentation=['classic', 'shift', 'resized_crop'],
    sizes=['20:0.5,28', '32', '16:.3,24'], label_smoothing=[0.0, 0.1, 0.2], moving_averages=[True, False],
    class_weights=['none', 'balanced', "a'b=2,c=0.5"], freeze=['^conv1/', "a'b c$", '(x|y)'],
    num_towers=[1, 4], batch_size=[128, 512, 32, 7],
    variable_update=['parameter_server', 'replicated', 'async', 'local', 'mirrored'], local_steps=[1, 8, 64],
    precision=['fp32', 'bf16', 'fp16', 'auto'], deterministic=[True, False], image_size=[24, 32, 48, 64, 96, 128],
    dataset=['shapes', 'cifar10', '/x y/'], data_dir=['/tmp/a b', '/tmp/cifar10_data'], test_fraction=[0.1, 0.25],
    seed=[0, 5], epochs=[2.75, 30.0, 1 / 3, 5, 1e6], max_steps=[10, 1000000, 7], save_steps=[1000, 200, 5],
    eval_steps=[0, 200, 7], keep_best=[True, False], max_to_keep=[0, 5, 2], log_frequency=[10, 1],
    summary_steps=[0, 100], use_fp16=[True, False], num_gpus=[1, 4], gpus_per_tower=[1, 2], xla=[True, False],
    tower_device=['auto', 'cpu'], patience=[0, 5], save_minutes=[10, 0.5, 0])


def decided(settings):
    """Returns settings as a run records them, with all values decided."""
    towers, recipe = settings.towers, settings.recipe
    values = dict(num_towers=towers.num_towers or 2,
                  batch_size=towers.batch_size or PRESETS[recipe.preset]['batch_size'],
                  precision='bf16' if towers.precision == 'auto' else towers.precision)
    if recipe.learning_rate is None:
        values['learning_rate'] = default_rate(recipe.preset, recipe.optimizer).learning_rate
    return settings.replace(**values)


def test_the_flags_of_a_run_give_its_settings():
    draw = random.Random(5)
    names = [field.name for field in fields(*GROUPS) if field.metadata['kind'] is not Kind.START]
    valid = 0
    for _ in range(DRAWS):
        given = {name: draw.choice(values) for name, values in VALUES.items() if draw.random() < 0.3}
        try:
            before = decided(train_settings(**given))
        except UsageError:
            continue
        valid += 1
        line = ' '.join(flags_of(before))
        after = decided(train_settings(**flags.parse(GROUPS, 'x', shlex.split(line))))
        assert {name: after.flat()[name] for name in names} == {name: before.flat()[name] for name in names}, line
    assert valid > DRAWS / 10


@pytest.mark.parametrize('preset', ['classic', 'photos'])
def test_clipping_can_be_turned_off_in_a_resumed_run(tmp_path, preset):
    recorded = train_settings(preset=preset, clip_norm=2.0)
    for given, norm in ((dict(), 2.0), (dict(clip_norm=0), 0), (dict(), 0)):
        write_config(tmp_path, recorded)
        recorded, _ = resolve(dict(train_dir=str(tmp_path), **given))
        assert recorded.recipe.clip_norm == norm


@pytest.mark.parametrize('given, norm', [
    (dict(), 1.5), (dict(network='classic', learning_rate=0.05, variable_update='local'), 1.5), (dict(clip_norm=0), 0),
    (dict(dataset='cifar10'), 0), (dict(preset='classic'), 0), (dict(preset='photos'), 1), (dict(network='fast'), 0),
    (dict(network='net.py:net'), 0), (dict(optimizer='adam'), 0), (dict(variable_update='mirrored'), 0)])
def test_only_the_default_recipe_clips_on_the_built_in_images(given, norm):
    assert train_settings(**{'dataset': 'shapes', **given}).recipe.clip_norm == norm


def off(field):
    """Returns the values that turn a setting off."""
    if field.type is bool:
        return [False]
    if field.type in (int, float):
        return [] if field.metadata['minimum'] or field.name in ('epochs', 'test_fraction', 'learning_rate') else [0]
    return ['none'] * (field.default == 'none') + [''] * (field.default is None)


@pytest.mark.parametrize('run', [
    *(dict(preset=preset) for preset in PRESETS), *(dict(variable_update=mode) for mode in VALUES['variable_update']),
    *(dict(precision=precision) for precision in VALUES['precision']), dict(epochs=3.0, schedule='linear'),
    *(dict(optimizer=optimizer, learning_rate=0.1) for optimizer in VALUES['optimizer']), dict(image_size=128),
    *(dict(augmentation=augmentation) for augmentation in VALUES['augmentation']), dict(loss='/a.py:f')],
    ids=lambda run: '-'.join(map(str, run.values())).replace('/', ''))
def test_turning_a_setting_off_is_never_refused(run):
    without = train_settings(**run)
    for field in fields(*GROUPS):
        for value in off(field) if field.name not in run else ():
            settings = train_settings(**run, **{field.name: value}).flat()
            assert settings[field.name] == (value if value != '' else without.flat()[field.name]) or (
                settings[field.name] is None)  # the setting does not apply here


@pytest.mark.parametrize('mode', VALUES['variable_update'])
def test_a_run_with_all_settings_turned_off_is_planned_in_each_mode(mode, settings):
    nothing = {field.name: value for field in fields(*GROUPS) for value in off(field)}
    plan, _ = planned(settings(**nothing, variable_update=mode, num_gpus=2))
    assert plan.settings.towers.variable_update == mode and len(nothing) > 25


@pytest.mark.parametrize('use', [
    dict(checkpoint='/a/model.ckpt-1'), dict(train_dir='/a'), dict(image=('a.png',), csv='/a.csv'),
    dict(export_dir='/a'), dict(image=('a.png',), json=True), dict(eval_data='train_eval')])
def test_the_evaluator_never_refuses_to_turn_a_setting_off(use):
    for field in fields(*evaluation.GROUPS):
        for value in off(field) if field.name not in use else ():
            assert dataclasses.replace(eval_settings(**use, **{field.name: value}), **{field.name: None}) == (
                dataclasses.replace(eval_settings(**use), **{field.name: None}))


@pytest.mark.parametrize('value', [
    'x' * 5000, 'a\x01' + 'b' * 3000, 'a.py:' + 'f' * 3000, '1:' + '9' * 4000, 'a=' + '1' * 4000, '(' * 1000,
    b'x' * 4000, np.zeros([400, 400]), list(range(3000)), tuple(map(str, range(3000))), dict.fromkeys(range(999)),
    10 ** 900, -10 ** 500],
    ids=lambda value: type(value).__name__)
def test_messages_shorten_long_values(value):
    refused = []
    for make, groups in (train_settings, GROUPS), (eval_settings, evaluation.GROUPS):
        for field in fields(*groups):
            try:
                make(**{field.name: value})
            except UsageError as error:
                refused.append(field.name)
                assert len(str(error)) < 500 and '\n' not in str(error), field.name
    assert len(refused) > 40 and {'train_dir', 'data_dir', 'warm_start', 'checkpoint', 'csv'} <= {*refused}


def test_a_resumed_run_without_evaluations_keeps_no_best(tmp_path):
    write_config(tmp_path, train_settings(preset='photos', patience=3))
    settings, _ = resolve(dict(train_dir=str(tmp_path), eval_steps=0))
    assert (settings.reports.keep_best, settings.run.patience) == (False, 0)


def test_every_default_of_a_changeable_setting_can_be_given():
    # Otherwise a resumed run could never turn the setting off again.
    for field in fields(*GROUPS):
        if field.metadata['kind'] in (Kind.NOTED, Kind.FREE):
            has_value = train_settings().flat()[field.name] is not None or field.metadata['only_with']
            assert has_value or field.name in ('epochs', 'learning_rate', 'num_towers', 'batch_size'), field.name


def test_a_length_below_one_image_is_refused_before_anything_is_written(settings):
    config = settings(max_steps=None, epochs=1e-5)
    with pytest.raises(UsageError, match='--epochs=1e-05 of 1,000 images is less than one image; give more epochs'):
        train(**as_given(config))
    assert not os.path.exists(config.run.train_dir)
    assert train(**as_given(config, epochs=1e-3)).step == 1  # one image
