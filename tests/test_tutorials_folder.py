"""The folder of a run of the tutorial's scripts: recognised, resumed, in either format, and left as it was."""
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError, UsageError
from cifar10.evaluation.evaluation import evaluate
from cifar10.run import checkpoint, metrics, saved
from cifar10.run.folder import glance, step_of
from cifar10.run.train_dir import TrainDir
from cifar10.settings.evaluation import eval_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.helpers import assert_same_bits, checkpoints, rewrite, state_of, train


@pytest.fixture
def tutorials(first_step, tmp_path):
    """A function that makes the folder of a run of the tutorial's scripts, at step 1; returns its path."""
    def make(network, name='tutorial', without=('examples_seen',), **format):
        folder = tmp_path / name
        folder.mkdir()
        rewrite(checkpoints(first_step(network))[-1], str(folder / 'model.ckpt-0'), without,
                global_step=np.float32(1), **format)
        return str(folder)
    return make


def test_a_checkpoint_of_the_tutorial_is_resumed_and_what_is_assumed_is_said(tutorials, settings, capsys):
    folder = tutorials('linear')
    before = state_of(folder)
    resumed = dict(train_dir=folder, num_towers=2, batch_size=20)
    trainer.train(settings(max_steps=1, **resumed))  # leaves it alone
    assert {**state_of(folder), **before} == state_of(folder)
    capsys.readouterr()
    last = train(settings(max_steps=2, **resumed))
    assert last['global_step'] == 2 and last['global_step'].dtype == np.int64
    assert last['examples_seen'] == 2 * 40
    lines = capsys.readouterr().out
    assert f'run        {folder}, of another program, resumed at step 1 of 2\n' in lines
    assert ('assumed    its steps had 40 examples, as here (--num_towers=2 --batch_size=20): 0.0 epochs so far, so '
            'the rate is 0.1 now, and falls next after step 87500; if not, start again from another copy') in lines


def test_the_tutorials_own_folder_is_recognised(classic_checkpoint_dir, settings, tmp_path, capsys):
    shutil.copytree(classic_checkpoint_dir, tmp_path / 'copy', copy_function=shutil.copyfile)
    check(settings(train_dir=str(tmp_path / 'copy'), network='classic', batch_size=128, max_steps=20000))
    lines = capsys.readouterr().out
    assert ", of TensorFlow's tutorial, resumed at step 10001 of 20000\n" in lines
    assert 'assumed    its steps had 128 examples, as here' in lines and 'so the rate is 0.1 now, and falls' in lines


def test_a_folder_of_the_tutorial_stays_one_whatever_network_is_asked_for(tutorials, settings, capsys):
    folder = tutorials('classic')
    asked = settings(train_dir=folder, network='linear', max_steps=1)
    trainer.train(asked)  # which has nothing to do, so a check has nothing to refuse
    start, = re.findall(f'run +{folder}, .*\n', capsys.readouterr().out)
    check(asked)
    assert start in capsys.readouterr().out and start.endswith(", of TensorFlow's tutorial, at step 1\n")
    with pytest.raises(UsageError, match='has no linear/biases: .*use another --train_dir .there --warm_start='):
        trainer.train(settings(train_dir=folder, network='linear', max_steps=2))


def test_where_there_is_a_model_its_own_images_are_asked_for(tutorials, settings, tmp_path, closed_network):
    folder = tutorials('classic')
    flags = dict(dataset='cifar10', network='classic', data_dir=str(tmp_path / 'none'))
    for changes, end in ((dict(), ' by hand, or use --dataset=shapes --train_dir=/tmp/shapes, which needs no network'),
                         (dict(train_dir=folder), ' by hand'), (dict(warm_start=folder), ' by hand')):
        with pytest.raises(UsageError, match=f'{end}$'):
            trainer.train(settings(**{**flags, **changes}))
    with pytest.raises(UsageError, match=' by hand$'):
        evaluate(eval_settings(checkpoint_dir=folder, eval_dir=f'{folder} eval', data_dir=str(tmp_path / 'none')))


@pytest.mark.stress
def test_other_images_than_the_tutorials_are_a_warning(tutorials, settings, data_dir, capsys):
    folder = tutorials('classic')
    warning = "warning: the tutorial's scripts train on cifar10, but this is --dataset=shapes\n"
    check(settings(train_dir=folder, network='classic', max_steps=2))
    assert warning in capsys.readouterr().out
    flags = dict(checkpoint_dir=folder, eval_dir=f'{folder} eval', data_dir=data_dir, num_examples=100)
    evaluate(eval_settings(dataset='shapes', run_once=True, **flags))
    assert warning in capsys.readouterr().out
    assert saved.other_images('cifar10') == []


def test_the_rate_that_a_run_of_the_tutorial_goes_on_with_is_said(tutorials, settings, capsys):
    folder = tutorials('linear')
    prefix = os.path.join(folder, 'model.ckpt-0')
    rewrite(prefix, os.path.join(folder, 'model.ckpt-87500'), (), global_step=np.float32(87500))
    check(settings(train_dir=folder, num_towers=2, batch_size=20, max_steps=1000000))
    assert 'so the rate is 0.01 now, and falls next after step ' in capsys.readouterr().out


@pytest.mark.stress
def test_a_checkpoint_in_the_v1_format_is_as_good_as_any(tutorials, settings):
    found = {}
    for version in (tf.train.SaverDef.V1, tf.train.SaverDef.V2):
        folder = tutorials('linear', f'v{version}', version=version)
        before = state_of(folder)
        del before['checkpoint']
        resumed = train(settings(train_dir=folder, max_to_keep=1, max_steps=3, save_steps=1))
        assert [step_of(prefix) for prefix in checkpoints(folder)] == [0, 3]  # it is not rotated away
        assert {**state_of(folder), **before} == state_of(folder)
        taken = train(settings(warm_start=f'{folder}/model.ckpt-0', train_dir=f'{folder} taken', max_steps=1))
        evaluated = []
        evaluate(eval_settings(checkpoint=f'{folder}/model.ckpt-0', eval_dir=f'{folder} eval', num_examples=100),
                 lambda prefix, step, classes, result, evaluated=evaluated: evaluated.append((step, result.accuracy)))
        found[version] = resumed, taken, dict(evaluated=np.array(evaluated))
    for one, other in zip(*found.values()):
        assert_same_bits(one, other)


@pytest.mark.stress
def test_a_folder_of_the_name_of_a_checkpoint_is_no_train_dir_and_hides_nothing(tutorials, settings):
    folder = tutorials('linear')
    prefix = os.path.join(folder, 'model.ckpt-0')
    before = state_of(folder)
    with pytest.raises(UsageError):
        check(settings(train_dir=prefix))
    with pytest.raises(UsageError, match='model.ckpt-0 is a checkpoint; give the directory that contains it$'):
        trainer.train(settings(train_dir=prefix))
    assert state_of(folder) == before
    os.mkdir(prefix)
    with pytest.raises(UsageError, match='is a checkpoint; give'):
        trainer.train(settings(train_dir=prefix))

    def seen():
        assert saved.corruption(prefix) is None and not saved.is_ours(prefix)
        taken = train(settings(warm_start=prefix, train_dir=f'{folder} taken', max_steps=1, restart=True))
        shutil.rmtree(f'{folder} copy', ignore_errors=True)
        shutil.copytree(folder, f'{folder} copy')
        resumed = train(settings(train_dir=f'{folder} copy', max_steps=2))
        return {**saved.read(prefix).values, 'taken': taken['linear/weights'], 'resumed': resumed['linear/weights']}
    found = seen()
    rewrite(f'{folder} taken/model.ckpt-1', os.path.join(prefix, 'model.ckpt-9'))
    assert_same_bits(seen(), found)


def test_a_corrupt_checkpoint_in_the_v1_format_is_left_alone(one_step, settings):
    directory = TrainDir(settings().run.train_dir)
    for suffix in ('', '.meta'):
        open(f'{directory.checkpoint_prefix}-0{suffix}', 'w').close()
    before = state_of(directory.path)
    checkpoint.rotate(directory, glance(directory.path).checkpoints, 1)
    assert state_of(directory.path).keys() == before.keys()
    with pytest.raises(UsageError, match='model.ckpt-0 was not written by this program'):
        trainer.train(settings(restart=True))


def test_broken_checkpoints_are_passed_over_with_what_would_mend_them(tutorials, settings, capsys):
    folder = tutorials('classic')
    flags = dict(checkpoint_dir=folder, eval_dir=f'{folder} eval', run_once=True)
    prefix = os.path.join(folder, 'model.ckpt-0')
    shutil.copyfile(f'{prefix}.index', os.path.join(folder, 'model.ckpt-7.index'))
    assert saved.newest(lambda: glance(folder)).prefix == prefix
    missing = re.escape('model.ckpt-7.data-00000-of-00001: No such file or directory; copy what is missing')
    assert re.search(f'7 cannot be read .*{missing}.; looking for an earlier one\n', capsys.readouterr().out)
    for name in ('model.ckpt-0.index', 'model.ckpt-0.data-00000-of-00001'):
        os.remove(os.path.join(folder, name))
    saved._reported.clear()
    for call in (lambda: trainer.train(settings(train_dir=folder, network='classic')),
                 lambda: evaluate(eval_settings(**flags))):
        with pytest.raises((UsageError, RunError), match=missing):
            call()
    assert 'looking for an earlier one' not in capsys.readouterr().out
    assert not os.path.exists(f'{folder} eval')
    with open(os.path.join(folder, 'model.ckpt-9'), 'w') as stream:
        stream.write('half of a file in the V1 format')
    with pytest.raises(UsageError, match=r'model.ckpt-9 cannot be read \(.*sstable.*\), and .*; move its files away'):
        trainer.train(settings(train_dir=folder, network='classic'))


def test_a_checkpoint_without_a_step_is_refused(tutorials, settings, tmp_path):
    folder = tutorials('linear', without=['examples_seen', 'global_step'])
    with pytest.raises(UsageError, match='has no global_step, .* start a new run from it with multi_gpu_train'):
        trainer.train(settings(train_dir=folder))
    train(settings(warm_start=folder, train_dir=str(tmp_path / 'new')))


@pytest.mark.classic
@pytest.mark.stress
def test_a_checkpoint_of_the_tutorial_takes_the_same_step_in_parts_and_in_copies(one_step, settings, tmp_path):
    prefix = checkpoints(settings().run.train_dir)[-1]
    rewrite(prefix, without=['examples_seen'], global_step=np.float32(1))
    for name in ('config.json', metrics.NAME):
        os.remove(os.path.join(settings().run.train_dir, name))
    found = []
    for changes in (dict(), dict(num_gpus=2, gpus_per_tower=2), dict(variable_update='replicated'),
                    dict(variable_update='local', local_steps=1)):
        shutil.copytree(settings().run.train_dir, tmp_path / str(len(found)))
        with tf.Graph().as_default():
            found.append(train(settings(train_dir=str(tmp_path / str(len(found))), max_steps=2, **changes)))
    assert found[0]['global_step'] == 2 and found[0]['examples_seen'] == 2 * 8
    for each in found[1:]:
        assert_same_bits(each, found[0])
