"""`--check`: runs a start up to its first step, reports as a training does, and writes nothing."""
import fcntl
import os
import re
import socket
import threading

import numpy as np
import pytest

import cifar10
from cifar10.base.errors import RunError, TemporaryError, UsageError
from cifar10.run.takeover import TrainDir
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from tests.helpers import mostly_stress, planned, small_disk, state_of, train
from tests.test_picture_files import encoded


def test_a_valid_start_is_described_and_nothing_is_written(data_dir, tmp_path, capsys):
    check(train_settings(dataset='shapes', data_dir=data_dir, num_gpus=2, train_dir=str(tmp_path / 'new' / 'train'),
                         tower_device='cpu', preset='fast', network='linear', precision='fp32', sizes='16',
                         batch_size=16))
    output = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in output.splitlines() if not line.startswith(' '))
    assert re.match(rf'cifar10 {cifar10.__version__}, Python 3\.\S+, TensorFlow 2\.', lines['versions'])
    assert lines['towers'] == '2 on 2 CPU devices (as requested): /cpu:0 /cpu:1'
    assert lines['run'].endswith('new, to step 86') and lines['recipe'].startswith('fast with network=linear, sizes=')
    assert lines['ready'] == 'without --check, the run would start'
    assert {'--num_gpus=2', '--preset=fast', '--sizes=16', '--batch_size=16'} <= set(lines['settings'].split())
    assert 'False' not in output and output.count('settings') == 1
    assert lines['rate'].startswith('0.2, ') and not re.search(r'\d\d\d\d\.\d+ [kM]B|\.\d\d+ .B', output)
    assert os.listdir(tmp_path) == []


def test_a_resumable_run_is_described_with_its_step(settings, capsys):
    config = settings(num_gpus=2, batch_size=6)
    train(config)
    before = state_of(config.run.train_dir)
    for changes, part in (({}, 'resumed at step 3 of 9'), (dict(restart=True), 'would be renamed'),
                          (dict(max_steps=2), 'ended      without --check, nothing would run')):
        capsys.readouterr()
        check(settings(**dict(dict(max_steps=9, batch_size=None), **changes)))
        output = capsys.readouterr().out
        assert part in output
        if not changes:  # the run's own settings
            assert 'towers     2 on ' in output and '(6 of each tower)' in output and ', fp32\n' in output
    assert state_of(config.run.train_dir) == before


NETWORK = """
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    weights = tf.get_variable('weights', [3, num_classes], initializer=tf.random_uniform_initializer(-1, 1))
    return tf.cast(tf.reduce_mean(images, [1, 2]), tf.float32) @ weights * 1e38 * 1e38
"""


def test_an_error_in_the_first_step_fails_a_check(settings, own):
    config = settings(network=own(NETWORK), learning_rate=0.01)
    for start in check, trainer.train:
        with pytest.raises(RunError, match='step 1: the loss of tower 0 is nan'):
            start(config)
        assert start is trainer.train or not os.path.exists(config.run.train_dir)


def test_untried_parts_are_listed(settings, tmp_path, capsys):
    check(settings())
    lines = dict(lines_of(capsys.readouterr().out))
    assert lines['tried'].startswith('step 1, loss ') and 'not tried' not in lines
    check(settings(dataset='cifar10', data_dir=str(tmp_path)))
    assert 'not tried  the first step, because the images are not prepared yet\n' in capsys.readouterr().out
    check(settings(job_name='worker', worker_hosts='127.0.0.1:1,127.0.0.1:2',
                   ps_hosts='127.0.0.1:3', variable_update='replicated'))
    output = capsys.readouterr().out
    assert 'not tried  the first step, because it needs all tasks of the cluster\n' in output
    assert 'idle       1 ps, because replicated keeps a copy of the variables on each device; leave out' in output


ONE_GROUP = dict(num_gpus=4, num_towers=1), '1 of 2 groups of 2 devices; --num_towers=2 would use them', 4


@pytest.mark.classic
@pytest.mark.parametrize('changes, idle, needed', mostly_stress([
    (dict(num_gpus=4, num_towers=3), None, 4),  # a group has a single tower
    (dict(num_gpus=4, variable_update='mirrored'), None, 'mirrored has only one tower on them'),
    ONE_GROUP,
    (dict(num_gpus=3, gpus_per_tower=3, num_towers=2, network='three_parts'), None, 3),
    (dict(num_gpus=8, gpus_per_tower=1, num_towers=4), '4 of 8 devices; --num_towers=8 would use them', None),
    (dict(num_towers=2), None, None)], ONE_GROUP))
def test_idle_devices_are_listed(settings, changes, idle, needed):
    expected = [f'idle       {idle}'] if idle else []
    if needed:
        why = needed if 'variable_update' in changes else (
            f'too few towers fill the gaps; --num_towers={needed} or more would')
        devices = changes.get('gpus_per_tower', 2)
        expected.append(f'gaps       the {devices} devices of a tower wait for each other, because {why}')
    assert planned(settings(**dict(dict(num_gpus=2, gpus_per_tower=2), **changes)))[1] == expected


@pytest.mark.parametrize('flags, part', [
    (dict(network='missing.py:network'), 'missing.py'), (dict(tower_device='gpu'), '--tower_device=gpu'),
    (dict(train_dir='file'), '--train_dir=file'),
    (dict(job_name='worker', task_index=0, worker_hosts='127.0.0.1:{port},127.0.0.1:1'), 'the port is in use')])
def test_a_check_fails_with_the_error_of_a_training(call, data_dir, tmp_path, monkeypatch, flags, part):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'file').write_text('')
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        given = {**dict(dataset='shapes', data_dir=data_dir, train_dir='run', tower_device='cpu'), **flags}
        status, error = call('multi_gpu_train.py', '--check', *(
            f'--{name}={value}'.format(port=port) for name, value in given.items()))
    assert status == 2 and part in error and os.listdir(tmp_path) == ['file']


def lines_of(output):
    """Returns [(label, text)] of what `--check` printed."""
    return [line.split(maxsplit=1) for line in output.splitlines() if not line.startswith(' ')]


def test_missing_data_are_no_error_and_the_rest_is_checked(tmp_path, capsys):
    check(train_settings(data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'train'), tower_device='cpu',
                      preset='fast', precision='fp32', sizes='16', epochs=27.5, batch_size=1024))
    lines = lines_of(capsys.readouterr().out)
    data, run, batch = map(dict(reversed(lines)).get, ('data', 'run', 'batch'))  # the first line `data` of two
    assert data == f'cifar10: the run would begin by downloading 170 MB, into {tmp_path}/data/cifar-10-batches-bin'
    assert run.endswith('new, to step 1,343') and batch.startswith('1,024 a step; ')  # 27.5 epochs of 50,000 images
    assert lines[-1] == ['not', 'tried  the first step, because the images are not prepared yet']
    assert os.listdir(tmp_path) == []


@pytest.mark.classic
def test_insufficient_disk_space_for_a_checkpoint_is_refused(settings, tmp_path):
    with small_disk(tmp_path / 'disk', 2) as disk:
        for start in (check, trainer.train):
            with pytest.raises(UsageError, match=r' has no room for .* \(a checkpoint\); free some space'):
                start(settings(train_dir=str(disk / 'train'), network='classic'))


def test_images_before_conversion_are_counted_as_files(tmp_path, capsys):
    picture = encoded(np.zeros([8, 8, 3], np.uint8), 'PNG')
    for part, count in (('train', 30), ('test', 3)):
        for name in ('cat', 'dog'):
            (tmp_path / 'own' / part / name).mkdir(parents=True)
            for i in range(count):
                (tmp_path / 'own' / part / name / f'{i}.png').write_bytes(picture)
    check(train_settings(dataset=f"{tmp_path / 'own'}/", data_dir=str(tmp_path / 'data'),
                         train_dir=str(tmp_path / 'train'), tower_device='cpu'))
    output = capsys.readouterr().out
    assert f'60 images of 32x32 to be prepared in {tmp_path}/data/own-32px/' in output
    assert 'not tried  the first step, because the images are not prepared yet\n' in output
    assert 'advice     this run takes 1,000,000 steps with 32x32 pixels; for photos, use --preset=photos' in output
    assert 'ready' not in output
    assert f'begin by preparing it, into {tmp_path}/data/own-32px/' in output
    assert sorted(os.listdir(tmp_path / 'own')) == ['test', 'train'] and not os.path.exists(tmp_path / 'data')


def test_a_run_in_progress_fails_a_check(tmp_path, data_dir):
    directory = TrainDir(str(tmp_path / 'train'))
    directory.refuse_another_process()
    running = re.escape(f'another process is training in --train_dir={directory.path} (process {os.getpid()} on ')
    with directory.locked(), pytest.raises(TemporaryError, match=running):
        check(train_settings(dataset='shapes', data_dir=data_dir, train_dir=directory.path, tower_device='cpu'))
    directory.refuse_another_process()


def test_checking_the_lock_does_not_make_a_concurrent_start_fail(settings, tmp_path):
    directory = TrainDir(str(tmp_path))
    with open(tmp_path / 'lock', 'w') as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        directory.refuse_another_process()  # another check
        threading.Timer(0.2, looking.close).start()
        with directory.locked():
            assert looking.closed  # it has waited for the check
