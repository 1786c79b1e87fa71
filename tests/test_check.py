"""`--check`: what a run would do, every problem that prevents it, and nothing written."""
import fcntl
import os
import pathlib
import re
import shutil
import socket
import threading

import numpy as np
import pytest

import cifar10
from cifar10.base.errors import RunError, UsageError
from cifar10.data import records
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from cifar10.training.start import Start, choose_devices, expect_data, refuse_other_images
from tests.helpers import ROOT, mostly_stress, planned, run_script, small_disk, state_of, train
from tests.test_picture_files import encoded

RESIDUAL = f"{ROOT / 'examples' / 'residual_network.py'}:residual"
ONE_PROBLEM = "the run cannot start; see the line 'problem' above"


def test_a_run_that_could_start_is_described_and_nothing_is_written(data_dir, tmp_path):
    result = run_script('multi_gpu_train.py', check=True, dataset='shapes', data_dir=data_dir, num_gpus=2,
                        train_dir=tmp_path / 'new' / 'train', tower_device='cpu', preset='fast', precision='fp32',
                        sizes='16', batch_size=16)
    assert result.returncode == 0 and result.stderr == ''
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith(' '))
    assert re.match(rf'cifar10 {cifar10.__version__}, Python 3\.\S+, TensorFlow 2\.', lines['versions'])
    assert lines['towers'] == '2 on 2 CPU devices (as requested): /cpu:0 /cpu:1'
    assert lines['run'].endswith('new, to step 860') and lines['recipe'].startswith('fast except for sizes: ')
    assert 'a checkpoint takes ' in lines['disk'] and lines['disk'].endswith('--max_to_keep=5')
    assert lines['ready'] == 'without --check the run would start'
    assert {'--num_gpus=2', '--preset=fast', '--sizes=16', '--batch_size=16'} <= set(lines['settings'].split())
    assert 'False' not in result.stdout and result.stdout.count('settings') == 1
    assert lines['rate'].startswith('0.2, ') and not re.search(r'\d\d\d\d\.\d+ [kM]B|\.\d\d+ .B', result.stdout)
    assert os.listdir(tmp_path) == []


def test_a_run_that_could_resume_says_where(settings, capsys):
    config = settings(num_gpus=2, batch_size=6)
    train(config)
    before = state_of(config.run.train_dir)
    for changes, part in (({}, 'resumed at step 3 of 9'), (dict(restart=True), 'would be renamed'),
                          (dict(max_steps=2), 'ended      without --check nothing would be done')):
        capsys.readouterr()
        check(settings(**dict(dict(max_steps=9, batch_size=None), **changes)))
        output = capsys.readouterr().out
        assert part in output
        if not changes:  # the settings are those of the run
            assert 'towers     2 on ' in output and '(6 of each tower)' in output and ', fp32\n' in output
    assert state_of(config.run.train_dir) == before


NETWORK = """
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    weights = tf.get_variable('{name}', [3, num_classes], initializer=tf.random_uniform_initializer(-1, 1))
    smallest = tf.get_variable('smallest', [], initializer=tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(smallest, {smallest}))
    return tf.cast(tf.reduce_mean(images, [1, 2]), tf.float32) @ weights * {scale}
"""


NAN = None, dict(scale='1e38 * 1e38'), dict(), 'step 1: the loss of tower 0 is nan'


@pytest.mark.parametrize('before, now, flags, problem', mostly_stress([
    (dict(), dict(name='other'), dict(), ' holds a run of another network: in evaluation, the operation '),
    (None, dict(smallest="float('inf')"), dict(), ': a variable is not finite, so no checkpoint is written'),
    (None, dict(), dict(freeze='weights'), '--freeze=weights'), NAN], NAN))
def test_ready_means_that_the_start_takes_its_first_step(settings, own, capsys, before, now, flags, problem):
    default = dict(name='weights', smallest=0.0, scale=1)

    def write(changes):
        network = own(NETWORK.format(**dict(default, **changes)))
        return settings(**dict(dict(network=network, learning_rate=0.01, max_steps=6), **flags))
    if before is not None:
        train(write(before).replace(max_steps=3))
    config = write(now)
    files = state_of(config.run.train_dir) if before is not None else None
    with pytest.raises(UsageError, match=ONE_PROBLEM):
        check(config)
    found, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('problem')]
    assert problem in found
    assert (state_of(config.run.train_dir) if files else os.path.exists(config.run.train_dir)) == (files or False)
    with pytest.raises((UsageError, RunError), match=re.escape(problem)):
        trainer.train(config)


def test_what_is_not_tried_is_named(settings, tmp_path, capsys):
    check(settings(profile_steps='2:9'))
    lines = dict(lines_of(capsys.readouterr().out))
    assert lines['untraced'] == '--profile_steps=2:9: the run now takes the steps 1 to 3, so only 2 to 3 are traced'
    assert lines['tried'].startswith('step 1, loss ') and 'not tried' not in lines
    check(settings(dataset='cifar10', data_dir=str(tmp_path)))
    assert 'not tried  the first step, because the images are not prepared yet\n' in capsys.readouterr().out
    check(settings(profile_steps='8:9', job_name='worker', worker_hosts='127.0.0.1:1,127.0.0.1:2',
                   ps_hosts='127.0.0.1:3', variable_update='replicated'))
    output = capsys.readouterr().out
    assert 'not tried  the first step, because it needs all tasks of the cluster\n' in output
    assert 'so none of them is traced\n' in output
    assert 'idle       1 ps, because replicated keeps a copy of the variables on each device; leave out' in output


@pytest.mark.stress
@pytest.mark.classic
@pytest.mark.parametrize('changes, idle, needed', [
    (dict(), None, 2),
    (dict(num_gpus=4), None, 4),
    (dict(num_gpus=4, num_towers=3), None, 4),  # a group has a single tower
    (dict(num_gpus=4, variable_update='mirrored'), None, 'mirrored has only one tower on them'),
    (dict(num_gpus=4, num_towers=1), '1 of 2 groups of 2 devices; --num_towers=2 would use them', 4),
    (dict(num_gpus=3, gpus_per_tower=3, num_towers=2, network=RESIDUAL), None, 3),
    (dict(num_gpus=8, gpus_per_tower=1, num_towers=4), '4 of 8 devices; --num_towers=8 would use them', None),
    (dict(num_towers=2), None, None), (dict(num_gpus=4, num_towers=5), None, None)])
def test_devices_that_wait_are_named(settings, data_dir, changes, idle, needed):
    start = Start(settings(**dict(dict(num_gpus=2, gpus_per_tower=2), **changes)))
    choose_devices(start)
    start.data = records.prepare('shapes', data_dir)
    expected = [f'idle       {idle}'] if idle else []
    if needed:
        why = needed if 'variable_update' in changes else (
            f'too few towers fill the gaps; --num_towers={needed} or more would')
        devices = changes.get('gpus_per_tower', 2)
        expected.append(f'gaps       the {devices} devices of a tower wait for each other, because {why}')
    assert planned(start) == expected


def test_every_problem_is_printed(data_dir, tmp_path):
    (tmp_path / 'file').write_text('')
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        result = run_script('multi_gpu_train.py', check=True, dataset='shapes', data_dir=tmp_path / 'file',
                            train_dir=tmp_path / 'file', tower_device='gpu', job_name='worker', task_index=0,
                            network='missing.py:network', worker_hosts=f'127.0.0.1:{port},127.0.0.1:1')
    assert result.returncode == 2
    assert result.stderr.startswith('multi_gpu_train.py: error: the run cannot start; see the 5 lines ')
    problems = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines() if line.startswith('problem')]
    for problem, part in zip(problems, ('the port is in use', 'missing.py', '--tower_device=gpu', '--data_dir',
                                        '--train_dir'), strict=True):
        assert part in problem
    assert 'worker 1 at 127.0.0.1:1: nothing listens there yet' in result.stdout
    assert f'worker 0 at 127.0.0.1:{port}, the chief' in result.stdout


def lines_of(output):
    """Returns [(label, text)] of what `--check` printed."""
    return [line.split(maxsplit=1) for line in output.splitlines() if not line.startswith(' ')]


def test_missing_data_are_no_problem_and_the_run_is_checked_as_if_they_were_there(tmp_path, capsys):
    check(train_settings(data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'train'), tower_device='cpu',
                      preset='fast', precision='fp32', sizes='16'))
    lines = lines_of(capsys.readouterr().out)
    data, run = [text for label, text in lines if label in ('data', 'run')][::2]
    assert data == f'cifar10: the run would begin by downloading 170 MB, into {tmp_path}/data/cifar-10-batches-bin'
    assert run.endswith('new, to step 269')  # 2.75 epochs of 50,000 images
    disk = [text for label, text in lines if label == 'disk']
    assert 'the data take 354.4 MB' in disk[0] and 'a checkpoint takes 4.6 MB' in disk[1]
    assert lines[-1] == ['so', 'far     no problem'] and os.listdir(tmp_path) == []


@pytest.mark.stress
def test_a_start_finds_the_same_too_little_room_as_a_check(settings, tmp_path, capsys):
    def lines(function, config):
        capsys.readouterr()
        function(config)
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith('warning: --train_dir')]

    def refused(config, message):
        with pytest.raises(UsageError, match=ONE_PROBLEM):
            check(config)
        problem, = [text for label, text in lines_of(capsys.readouterr().out) if label == 'problem']
        with pytest.raises(UsageError, match=message) as refusal:
            trainer.train(config)
        assert problem == str(refusal.value)
    with small_disk(tmp_path / 'disk', 2) as disk:
        refused(settings(data_dir=str(disk / 'data')), '^--data_dir=.*/data has no room for ')
        assert os.listdir(disk) == []
        config = settings(train_dir=str(disk / 'train'), max_to_keep=1000, summary_steps=0)
        warned = lines(check, config)
        assert len(warned) == 1 and warned == lines(trainer.train, config)

        assert ' has no room for ' in warned[0] and ', --max_to_keep=1000); free some space, or use ' in warned[0]


def test_images_that_are_not_converted_yet_count_as_files(tmp_path, capsys):
    picture = encoded(np.zeros([8, 8, 3], np.uint8), 'PNG')
    for part, count in (('train', 30), ('test', 3)):
        for name in ('cat', 'dog'):
            (tmp_path / 'own' / part / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / 'own' / part / name / f'{i}.png').write_bytes(picture)
    settings = train_settings(dataset=f"{tmp_path / 'own'}/", data_dir=str(tmp_path / 'data'),
                              train_dir=str(tmp_path / 'train'), tower_device='cpu')
    check(settings)
    output = capsys.readouterr().out
    assert f'60 images of 32x32 to be prepared in {tmp_path}/data/own-32px/' in output
    assert 'not tried  the first step, because the images are not prepared yet\n' in output
    assert 'advice     for photos there is --preset=photos; this run takes 1,000,000 steps with 32x32 pixels' in output
    assert output.endswith('so far     no problem; its 66 files are not read yet, and those that are no pictures will '
                           'be left out\n') and 'ready' not in output
    assert f'begin by preparing it, into {tmp_path}/data/own-32px/' in output
    assert sorted(os.listdir(tmp_path / 'own')) == ['test', 'train'] and not os.path.exists(tmp_path / 'data')
    (tmp_path / 'own' / 'train' / 'eel').mkdir()
    (tmp_path / 'own' / 'test' / 'eel').mkdir()
    with pytest.raises(UsageError, match=ONE_PROBLEM):
        check(settings)
    assert 'class eel has no training image' in capsys.readouterr().out


@pytest.mark.stress
def test_other_images_that_are_not_read_yet_are_refused_as_a_start_refuses_them(settings, tmp_path, capsys):
    flags = dict(dataset=f'{tmp_path}/own/', data_dir=f'{tmp_path}/data', tower_device='cpu')

    def files(*names):
        for name in names:
            (tmp_path / 'own' / name).mkdir(parents=True)
            for i in range(8):
                (tmp_path / 'own' / name / f'{i}.png').write_bytes(encoded(np.full([8, 8, 3], i, np.uint8), 'PNG'))

    def look():
        start = Start(settings(**flags))
        trainer.go_through(start, (choose_devices, expect_data, *trainer.PLANNING))
        return refuse_other_images(start)
    files('cat', 'dog')
    train(settings(**flags, max_steps=1))
    (tmp_path / 'own' / 'cat' / '9.png').write_bytes(encoded(np.zeros([8, 8, 3], np.uint8), 'PNG'))
    shutil.rmtree(tmp_path / 'data')
    assert look() == []
    files('eel')
    capsys.readouterr()
    with pytest.raises(UsageError, match=ONE_PROBLEM):
        check(settings(**flags))
    problem, = [text for label, text in lines_of(capsys.readouterr().out) if label == 'problem']
    with pytest.raises(UsageError, match='holds a run with other classes .now with eel.') as refused:
        trainer.train(settings(**flags))
    assert problem == str(refused.value)


def test_one_problem_does_not_hide_the_devices(tmp_path, data_dir, capsys):
    with pytest.raises(UsageError, match=ONE_PROBLEM):
        check(train_settings(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / 'train'), tower_device='cpu',
                          num_gpus=2, network='missing.py:network'))
    assert 'devices    2 CPU devices (as requested): /cpu:0 /cpu:1' in capsys.readouterr().out


def test_a_run_in_progress_is_a_problem(tmp_path, data_dir, capsys):
    directory = TrainDir(str(tmp_path / 'train'))
    directory.refuse_another_process()
    with directory.locked(), pytest.raises(UsageError, match=ONE_PROBLEM):
        check(train_settings(dataset='shapes', data_dir=data_dir, train_dir=directory.path, tower_device='cpu'))
    assert f'another process is training in --train_dir={directory.path} (process {os.getpid()} on ' in \
        capsys.readouterr().out
    directory.refuse_another_process()


def test_a_look_at_the_lock_does_not_make_a_start_fail(settings, tmp_path):
    directory = TrainDir(str(tmp_path))
    with open(tmp_path / 'lock', 'w') as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        directory.refuse_another_process()  # another look
        threading.Timer(0.2, looking.close).start()
        with directory.locked():
            assert looking.closed  # it has waited for the look


def megabytes(text):
    figure, unit = re.search(r'TensorBoard takes about (\d+\.\d) ([kMG])B', text).groups()
    return float(figure) * dict(k=1e-3, M=1, G=1e3)[unit]


@pytest.mark.stress
def test_the_line_on_the_disk_counts_what_tensorboard_gets(settings, capsys):
    config = settings(max_steps=100, log_frequency=1, summary_steps=10, eval_steps=50)
    check(config)
    disk, = [text for label, text in lines_of(capsys.readouterr().out) if label == 'disk']
    told = megabytes(disk)
    train(config)
    taken = sum(path.stat().st_size for path in pathlib.Path(config.run.train_dir).glob('*/events*')) / 1e6
    assert taken / 2 < told < 2 * taken
    check(settings(max_steps=100_000, log_frequency=1, summary_steps=10, eval_steps=50, train_dir=config.run.train_dir))
    assert megabytes(capsys.readouterr().out) > 500 * told
