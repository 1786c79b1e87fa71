"""The folder of a run of the tutorial's scripts: refused for training, readable in either format, never changed."""
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError, UsageError
from cifar10.evaluation.of_checkpoints import evaluate
from cifar10.run import checkpoints as of_run
from cifar10.run.folder import glance, step_of
from cifar10.settings.evaluation import eval_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.helpers import assert_same_bits, checkpoints, rewrite, state_of, train


@pytest.fixture
def tutorials(first_step, tmp_path):
    """A function that makes the folder of a run of the tutorial's scripts, at step 1, and returns its path."""
    def make(network, name='tutorial', without=('examples_seen',), **format):
        folder = tmp_path / name
        folder.mkdir()
        rewrite(checkpoints(first_step(network))[-1], str(folder / 'model.ckpt-0'), without,
                global_step=np.float32(1), **format)
        return str(folder)
    return make


@pytest.mark.parametrize('version', [tf.train.SaverDef.V1, tf.train.SaverDef.V2])
def test_a_folder_of_the_tutorial_is_refused_for_training_and_unchanged(version, tutorials, settings):
    folder = tutorials('linear', version=version)
    before = state_of(folder)
    for start in (trainer.train, check):
        for restart in (False, True):
            with pytest.raises(UsageError) as refused:
                start(settings(train_dir=folder, restart=restart))
            assert start is check or f'but no config.json, so it is no run of this program; use another --train_dir ' \
                f'(there --warm_start={folder} takes over' in str(refused.value)
    assert state_of(folder) == before


def test_a_foreign_checkpoint_in_a_runs_folder_is_neither_resumed_nor_removed(first_step, settings):
    folder = settings().run.train_dir
    shutil.copytree(first_step('linear'), folder, dirs_exist_ok=True)
    rewrite(checkpoints(folder)[-1], f'{folder}/model.ckpt-0', ['examples_seen'], global_step=np.float32(0))
    others = {name: state for name, state in state_of(folder).items() if 'ckpt-0' in name}
    train(settings(max_steps=3, save_steps=1, max_to_keep=1))
    assert [step_of(prefix) for prefix in checkpoints(folder)] == [0, 3]
    assert {**state_of(folder), **others} == state_of(folder)
    rewrite(f'{folder}/model.ckpt-0', f'{folder}/model.ckpt-9', global_step=np.float32(9))
    before = {name: state for name, state in state_of(folder).items() if name != 'lock'}
    with pytest.raises(UsageError, match='model.ckpt-9 was written by another program, .*; use another --train_dir'):
        trainer.train(settings(max_steps=20))
    assert {**state_of(folder), **before} == state_of(folder)


def test_missing_images_of_an_existing_model_are_asked_for(tutorials, settings, tmp_path, closed_network):
    folder = tutorials('classic')
    flags = dict(dataset='cifar10', network='classic', data_dir=str(tmp_path / 'none'))
    for changes, end in ((dict(), ' by hand, or use --dataset=shapes --train_dir=/tmp/shapes, which needs no network'),
                         (dict(warm_start=folder), ' by hand')):
        with pytest.raises(UsageError, match=f'{end}$'):
            trainer.train(settings(**{**flags, **changes}))
    with pytest.raises(UsageError, match=' by hand$'):
        evaluate(eval_settings(checkpoint_dir=folder, eval_dir=f'{folder} eval', data_dir=str(tmp_path / 'none')))


@pytest.mark.stress
def test_checkpoints_in_the_v1_format_work_like_v2(tutorials, settings, data_dir):
    found = {}
    for version in (tf.train.SaverDef.V1, tf.train.SaverDef.V2):
        folder = tutorials('classic', f'v{version}', version=version)
        taken = train(settings(warm_start=f'{folder}/model.ckpt-0', train_dir=f'{folder} taken', max_steps=1,
                               network='classic'))
        evaluated = []
        evaluate(eval_settings(checkpoint=f'{folder}/model.ckpt-0', eval_dir=f'{folder} eval', num_examples=100,
                               dataset='shapes', data_dir=data_dir),
                 lambda result, evaluated=evaluated: evaluated.append((result.step, result.accuracy)))
        found[version] = taken, dict(evaluated=np.array(evaluated))
    for one, other in zip(*found.values()):
        assert_same_bits(one, other)


def test_broken_checkpoints_are_skipped_with_a_remedy(tutorials, capsys):
    folder = tutorials('classic')
    flags = dict(checkpoint_dir=folder, eval_dir=f'{folder} eval', run_once=True)
    prefix = os.path.join(folder, 'model.ckpt-0')
    shutil.copyfile(f'{prefix}.index', os.path.join(folder, 'model.ckpt-7.index'))
    assert of_run.newest(lambda: glance(folder)).prefix == prefix
    missing = re.escape('model.ckpt-7.data-00000-of-00001: No such file or directory; copy the missing files')
    assert re.search(f'7 cannot be read .*{missing}.; looking for an earlier one\n', capsys.readouterr().out)
    for name in ('model.ckpt-0.index', 'model.ckpt-0.data-00000-of-00001'):
        os.remove(os.path.join(folder, name))
    of_run._reported.clear()
    with pytest.raises(RunError, match=missing):
        evaluate(eval_settings(**flags))
    assert 'looking for an earlier one' not in capsys.readouterr().out
    assert not os.path.exists(f'{folder} eval')


def test_a_checkpoint_without_a_step_can_be_a_warm_start(tutorials, settings, tmp_path):
    folder = tutorials('linear', without=['examples_seen', 'global_step'])
    with pytest.raises(UsageError, match='has no global_step, .* start a new run from it'):
        print(of_run.read(f'{folder}/model.ckpt-0').step)
    train(settings(warm_start=folder, train_dir=str(tmp_path / 'new')))
