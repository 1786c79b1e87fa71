"""`--check`: what a run would do, every reason why it could not start, and nothing written."""
import os
import socket

import pytest

from cifar10.check import check
from cifar10.errors import UsageError
from cifar10.run.train_dir import TrainDir
from tests.helpers import run_script, train


def tree(folder):
    """Returns {name: time of its last change} of all files in a folder."""
    return {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(folder)}


def test_a_run_that_could_start_is_described_and_nothing_is_written(data_dir, tmp_path):
    result = run_script('multi_gpu_train.py', check=True, dataset='shapes', data_dir=data_dir, num_gpus=2,
                        train_dir=tmp_path / 'new' / 'train', tower_device='cpu', preset='fast', precision='fp32')
    assert result.returncode == 0 and result.stderr == ''
    lines = dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith(' '))
    assert lines['versions'].startswith('Python 3.') and 'TensorFlow 2.' in lines['versions']
    assert lines['GPUs'] == 'CUDA_VISIBLE_DEVICES=-1 hides all GPUs'
    assert lines['towers'] == '2 of 512 on 2 CPU devices (as requested): /cpu:0 /cpu:1'
    assert lines['run'].endswith('new, to step 27') and lines['recipe'].startswith('fast: ')
    assert 'a checkpoint takes 4.6 MB' in lines['disk'] and lines['disk'].endswith('--max_to_keep=5')
    assert lines['ready'] == 'without --check the run would start'
    assert 'learning_rate=0.2' in result.stdout and 'widths=64,128,128' in result.stdout
    assert os.listdir(tmp_path) == []


def test_a_run_that_could_go_on_says_where(settings, capsys):
    config = settings()
    train(config)
    before = tree(config.train_dir)
    for changes, part in (({}, 'resumed at step 3 of 9'), (dict(restart=True), 'would be deleted')):
        capsys.readouterr()
        check(settings(max_steps=9, **changes))
        assert part in capsys.readouterr().out
    assert tree(config.train_dir) == before


def test_every_reason_is_told(data_dir, tmp_path):
    (tmp_path / 'file').write_text('')
    with socket.create_server(('127.0.0.1', 0)) as taken:
        port = taken.getsockname()[1]
        result = run_script('multi_gpu_train.py', check=True, dataset='shapes', data_dir=tmp_path / 'file',
                            train_dir=tmp_path / 'file', tower_device='gpu', job_name='worker', task_index=0,
                            worker_hosts=f'127.0.0.1:{port},127.0.0.1:1')
    assert result.returncode == 2
    assert result.stderr.startswith('multi_gpu_train.py: error: the run could not start, for 4 reasons')
    problems = [line.split(maxsplit=1)[1] for line in result.stdout.splitlines() if line.startswith('problem')]
    for problem, part in zip(problems, ('the port is in use', '--tower_device=gpu', '--data_dir', '--train_dir'),
                             strict=True):
        assert part in problem
    assert 'peer       worker 1 at 127.0.0.1:1 does not answer yet' in result.stdout
    assert f'cluster    worker 0 at 127.0.0.1:{port}, the chief' in result.stdout


def test_what_training_would_refuse_is_a_reason(settings, capsys, tmp_path):
    train(settings())

    def problem(**changes):
        capsys.readouterr()
        with pytest.raises(UsageError, match='for 1 reason; see the lines'):
            check(settings(**changes))
        line, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('problem')]
        return line
    assert 'holds a run with seed=0 (now 1)' in problem(seed=1)
    (tmp_path / 'mine.py').write_text('def network(images, num_classes, training): return images')
    other = str(tmp_path / 'other')
    assert 'it returns a tensor float32' in problem(network=f"{tmp_path / 'mine.py'}:network", train_dir=other)
    assert not os.path.exists(other)


def test_missing_data_are_no_reason_but_are_said(tmp_path):
    result = run_script('multi_gpu_train.py', check=True, data_dir=tmp_path / 'data', train_dir=tmp_path / 'train',
                        tower_device='cpu')
    assert result.returncode == 0 and 'is not in' in result.stdout and os.listdir(tmp_path) == []
    assert 'ready      as far as it was checked' in result.stdout


def test_a_run_that_is_going_on_is_a_reason(tmp_path, data_dir):
    directory = TrainDir(str(tmp_path / 'train'))
    assert not directory.in_use()
    with directory.locked():
        result = run_script('multi_gpu_train.py', check=True, dataset='shapes', data_dir=data_dir,
                            train_dir=tmp_path / 'train', tower_device='cpu')
        assert result.returncode == 2 and 'another process is training' in result.stdout
    assert not directory.in_use()
    assert os.listdir(tmp_path / 'train') == ['lock']
