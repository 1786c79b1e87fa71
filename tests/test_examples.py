"""The examples, as processes: what they print, and that it does not depend on the number of towers."""
import gzip
import re
import runpy
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import ROOT


def run(script, *arguments):
    return subprocess.run([sys.executable, str(ROOT / 'examples' / script), *arguments], capture_output=True, text=True,
                          timeout=120)


@pytest.fixture
def call(monkeypatch, capsys):
    """A function like `run` that runs the script in this process, where TensorFlow is imported already."""
    def run_here(script, *arguments):
        path = str(ROOT / 'examples' / script)
        monkeypatch.setattr(sys, 'argv', [path, *arguments])
        monkeypatch.setattr(sys.stdout, 'reconfigure', lambda **options: None, raising=False)
        with tf.Graph().as_default(), pytest.raises(SystemExit) as end:
            runpy.run_path(path, run_name='__main__')
        return subprocess.CompletedProcess(path, end.value.code, *capsys.readouterr())
    return run_here


def losses(run, *arguments):
    """Returns {step: loss} as parabola.py prints them."""
    result = run('parabola.py', *arguments)
    assert result.returncode == 0 and result.stderr == '', result.stderr
    lines = [re.fullmatch(r'step +(\d+), loss = (\d+\.\d+)', line) for line in result.stdout.splitlines()]
    return {int(line.group(1)): float(line.group(2)) for line in lines}


def numpy_losses(steps):
    """The same fit in plain NumPy, from the network's own initial values."""
    with tf.Graph().as_default(), tf.Session() as session:
        w1, b1, w2, b2 = (session.run(tf.random.stateless_normal(shape, [0, zlib.crc32(name)])).astype(np.float64)
                          for name, shape in ((b'w1', [1, 5]), (b'b1', [5]), (b'w2', [5, 1]), (b'b2', [1])))
    x = np.linspace(-2, 2, 50)[:, None]
    y, found = x ** 2, {}
    for step in range(1, steps + 1):
        hidden = np.tanh(x @ w1 + b1)
        error = 2 * (hidden @ w2 + b2 - y) / 50
        back = (error @ w2.T) * (1 - hidden ** 2)
        w1, b1, w2, b2 = (w1 - 0.01 * x.T @ back, b1 - 0.01 * back.sum(0), w2 - 0.01 * hidden.T @ error,
                          b2 - 0.01 * error.sum(0))
        if step % 50 == 0:
            found[step] = np.mean((np.tanh(x @ w1 + b1) @ w2 + b2 - y) ** 2)
    return found


def test_the_losses_of_any_number_of_towers_are_those_of_plain_numpy(call):
    expected = numpy_losses(1000)
    for runner, arguments in ((run, ['--towers=3']), (call, ['--towers=4', '--variable_update=replicated'])):
        found = losses(runner, '--steps=1000', *arguments)
        assert list(found) == list(range(50, 1001, 50))
        np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=1e-3, atol=2e-6)


@pytest.mark.stress
def test_processes_whose_master_averages_print_the_same_losses():
    command = [sys.executable, '-m', 'cifar10.local_cluster', '--workers=3', '--', sys.executable]
    result = subprocess.run(command + ['examples/parabola.py', '--steps=200'], capture_output=True, text=True,
                            cwd=ROOT, timeout=60)
    assert result.returncode == 0, result.stdout
    found = dict(re.findall(r'^worker 0 \| step +(\d+), loss = (\d+\.\d+)$', result.stdout, re.M))
    expected = numpy_losses(200)
    assert list(map(int, found)) == list(expected) == [50, 100, 150, 200]
    np.testing.assert_allclose(list(map(float, found.values())), list(expected.values()), rtol=1e-3)
    assert result.stdout.count('done       the training has ended') == 2


def test_asynchronous_towers_fit_as_well(call):
    found = losses(call, '--towers=3', '--variable_update=async')
    assert found[max(found)] < 0.05 and max(found) == 2000


def test_many_asynchronous_towers_make_no_more_updates_than_asked_for(call):
    assert max(losses(call, '--towers=6', '--steps=130', '--variable_update=async')) == 130


def test_the_fit_is_plotted(call, tmp_path):
    pytest.importorskip('matplotlib')
    result = call('parabola.py', '--steps=50', f"--plot={tmp_path / 'fit.png'}")
    assert result.returncode == 0, result.stderr
    assert (tmp_path / 'fit.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('script, argument, said', [
    ('parabola.py', '--towers=51', '1 to 50 towers'),
    ('parabola.py', '--job_name=worker', '--worker_hosts'),
    ('parabola.py', '--steps=0', 'the minimum is 1'),
    ('parabola.py', '--plot=/nowhere/fit.png', '/nowhere/fit.png'),
    ('lenet_fashion_mnist.py', '--epochs=0', 'the minimum is 1'),
    ('lenet_fashion_mnist.py', '--learning_rate=0', "'0' is not a number above 0"),
    ('lenet_fashion_mnist.py', '--tower_device=gpu', 'hides all GPUs; use --tower_device=cpu'),
    ('towers_by_hand.py', '--towers=7', 'cannot share 1200 points evenly')])
def test_invalid_arguments_are_rejected_before_it_starts(script, argument, said, call):
    if argument.startswith('--plot'):
        pytest.importorskip('matplotlib')
    result = call(script, argument)
    line, = result.stderr.splitlines()
    assert result.returncode == 2 and said in line and result.stdout == ''


@pytest.fixture(scope='module')
def stand_in(tmp_path_factory):
    """A folder with four idx.gz files as Fashion-MNIST's: a pattern of 7x7 fields a class, with noise."""
    folder = tmp_path_factory.mktemp('fashion')
    random = np.random.default_rng(0)
    patterns = (random.random([10, 7, 7]) < 0.4).repeat(4, 1).repeat(4, 2) * 200
    for part, count in (('train', 2600), ('t10k', 500)):
        labels = random.integers(0, 10, count).astype(np.uint8)
        images = (patterns[labels] + random.integers(0, 56, [count, 28, 28])).astype(np.uint8)
        for name, array in (('images-idx3', images), ('labels-idx1', labels)):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, '>u4').tobytes()
            with gzip.open(folder / (f'{part}-{name}-ubyte.gz'), 'wb', compresslevel=1) as stream:
                stream.write(header + array.tobytes())
    return folder


@pytest.mark.stress
def test_lenet_prints_its_devices_and_an_epoch_a_line(stand_in, call):
    data = f'--data_dir={stand_in}'
    results = [runner('lenet_fashion_mnist.py', data, f'--towers={k}', '--epochs=2')
               for k, runner in ((1, call), (3, run))]
    for k, result in zip((1, 3), results):
        assert result.returncode == 0 and result.stderr == '', result.stderr
        lines = result.stdout.splitlines()
        assert lines[0].startswith(f'towers     {k} on ')
        assert lines[1] == 'the last, smaller batch of an epoch, of 40 images, is dropped'
        assert len(lines) == 4
        for epoch, line in enumerate(lines[2:], 1):
            assert re.fullmatch(f'epoch {epoch}, time \\d+\\.\\d sec, test acc [01]\\.\\d\\d', line)
    accuracies = [re.findall(r'acc (.*)', result.stdout) for result in results]
    np.testing.assert_allclose(*[np.array(each, float) for each in accuracies], atol=0.02)


def test_lenet_learns(stand_in, call):
    result = call('lenet_fashion_mnist.py', f'--data_dir={stand_in}', '--towers=2', '--epochs=15', '--batch_size=64',
                 '--learning_rate=0.2', '--tower_device=cpu')
    assert result.stdout.startswith('towers     2 on 2 CPU devices (as requested)')
    assert float(re.findall(r'acc (.*)', result.stdout)[-1]) > 0.9


def test_a_broken_file_is_named(stand_in, tmp_path, call):
    (tmp_path / 'train-images-idx3-ubyte.gz').write_bytes(b'broken')
    result = call('lenet_fashion_mnist.py', f'--data_dir={tmp_path}')
    line, = result.stderr.splitlines()
    assert result.returncode == 2 and 'train-images-idx3-ubyte.gz is not an idx.gz file' in line


def test_towers_by_hand_take_the_same_steps_whatever_their_number(call):
    losses = []
    for k, runner in ((1, call), (4, run)):
        result = runner('towers_by_hand.py', f'--towers={k}', '--steps=200', '--tower_device=cpu')
        assert result.returncode == 0, result.stderr
        losses.append(re.findall(r'step +\d+, loss = (\S+)', result.stdout))
    assert losses[0] == losses[1] and float(losses[0][-1]) < 0.2
