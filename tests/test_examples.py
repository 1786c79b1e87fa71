"""The examples, as processes: their output, which does not depend on the number of towers."""
import gzip
import os
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel.devices import Devices
from examples import fashion_mnist, lenet_fashion_mnist, own_script
from tests.helpers import initialise, python


def run(script, *arguments):
    return python(f'examples/{script}', *arguments)


@pytest.fixture
def call(call_lesson):
    """A function like `run` that runs the script in this process, which has imported TensorFlow."""
    return lambda script, *arguments: subprocess.CompletedProcess(
        script, *call_lesson(f'../examples/{script}', *arguments))


REPORT = r'after +(\d+) updates, loss = (\d+\.\d+)(?:, gradient of b2: ([-\d. ]+), mean (-?\d\.\d+))?'


def fit(run, *arguments):
    """Returns {step: loss} and {step: [each tower's gradient of b2, their mean]} from the output of parabola.py."""
    result = run('parabola.py', *arguments)
    assert result.returncode == 0 and result.stderr == '', result.stderr
    reports = [re.fullmatch(REPORT, line).groups() for line in result.stdout.splitlines()]
    losses = {int(step): float(loss) for step, loss, _, _ in reports}
    gradients = {int(step): [*map(float, towers.split()), float(mean)] for step, _, towers, mean in reports if towers}
    return losses, gradients


def numpy_fit(steps, towers=1):
    """Computes the fit in plain NumPy from the network's initial values; returns the same as `fit`."""
    with tf.Graph().as_default(), tf.Session() as session:
        w1, b1, w2, b2 = (session.run(tf.random.stateless_normal(shape, [0, zlib.crc32(name)])).astype(np.float64)
                          for name, shape in ((b'w1', [1, 5]), (b'b1', [5]), (b'w2', [5, 1]), (b'b2', [1])))
    x = np.linspace(-2, 2, 50)[:, None]
    y, losses, gradients = x ** 2, {}, {}
    parts = [slice(k * 50 // towers, (k + 1) * 50 // towers) for k in range(towers)]
    for step in range(steps + 1):
        hidden = np.tanh(x @ w1 + b1)
        error = 2 * (hidden @ w2 + b2 - y) / 50
        if step % 50 == 0:
            losses[step] = np.mean((50 * error / 2) ** 2)
            # The gradient of a tower's sum over its points, divided by 50 / towers; their mean is the whole gradient.
            gradients[step] = [*(towers * error[part].sum() for part in parts), error.sum()]
        back = (error @ w2.T) * (1 - hidden ** 2)
        w1, b1, w2, b2 = (w1 - 0.01 * x.T @ back, b1 - 0.01 * back.sum(0), w2 - 0.01 * hidden.T @ error,
                          b2 - 0.01 * error.sum(0))
    return losses, gradients


def test_losses_and_gradients_of_any_number_of_towers_match_plain_numpy(call):
    for towers, mode in ((3, 'parameter_server'), (4, 'replicated')):
        losses, gradients = fit(call, '--steps=100', f'--towers={towers}', f'--variable_update={mode}')
        expected_losses, expected_gradients = numpy_fit(100, towers)
        assert list(losses) == list(range(0, 101, 50))
        assert list(gradients) == list(range(0, 100, 50)), 'no update follows the last step'
        np.testing.assert_allclose(list(losses.values()), list(expected_losses.values()), rtol=1e-3, atol=2e-6)
        for step, values in gradients.items():
            np.testing.assert_allclose(values, expected_gradients[step], rtol=1e-3, atol=1e-3)


def test_the_single_device_script_has_the_same_losses_as_towers(call):
    losses, gradients = fit(call, '--alone', '--steps=130')
    expected, _ = numpy_fit(130)
    assert list(losses) == [0, 50, 100, 130] and gradients == {}
    np.testing.assert_allclose([losses[step] for step in expected], list(expected.values()), rtol=1e-3, atol=2e-6)


@pytest.mark.stress
def test_processes_averaged_by_a_master_print_the_same_losses():
    result = python('-m', 'cifar10', 'local_cluster', '--workers=3', '--', sys.executable, 'examples/parabola.py',
                    '--steps=200')
    assert result.returncode == 0, result.stdout
    reports = re.findall(rf'^worker 0 \| {REPORT}$', result.stdout, re.M)
    losses, gradients = numpy_fit(200, towers=3)
    assert [int(step) for step, *_ in reports] == list(losses) == [0, 50, 100, 150, 200]
    np.testing.assert_allclose([float(loss) for _, loss, _, _ in reports], list(losses.values()), rtol=1e-3)
    for step, _, towers, mean in reports[:-1]:
        np.testing.assert_allclose([*map(float, towers.split()), float(mean)], gradients[int(step)], atol=1e-3)
    assert result.stdout.count('done       the training has ended') == 2


@pytest.mark.stress
def test_asynchronous_towers_also_fit_the_parabola(call):
    losses, gradients = fit(call, '--towers=3', '--variable_update=async')
    assert losses[max(losses)] < 0.05 and max(losses) == 2000
    expected, _ = numpy_fit(0)
    assert losses[0] == pytest.approx(expected[0], abs=2e-6), 'read before any tower has started'
    assert gradients == {}, 'asynchronous gradients have no mean'


def test_asynchronous_towers_make_exactly_the_requested_updates(call):
    losses, _ = fit(call, '--towers=6', '--steps=130', '--variable_update=async')
    assert max(losses) == 130


@pytest.mark.parametrize('script, argument, said', [
    ('parabola.py', '--towers=51', 'at most 50 towers'),
    ('parabola.py', '--job_name=worker', '--worker_hosts'),
    ('parabola.py', '--alone --towers=2', '--towers'),
    ('parabola.py', '--plot=/nowhere/fit.png', '/nowhere/fit.png'),
    ('lenet_fashion_mnist.py', '--learning_rate=0', "'0' is not a number above 0"),
    ('lenet_fashion_mnist.py', '--tower_device=gpu', 'hides all GPUs; use --tower_device=cpu')])
def test_invalid_arguments_are_rejected_before_the_start(script, argument, said, call):
    if argument.startswith('--plot'):
        pytest.importorskip('matplotlib')
    result = call(script, *argument.split())
    line, = result.stderr.splitlines()
    assert result.returncode == 2 and said in line and result.stdout == ''


@pytest.fixture(scope='module')
def stand_in(tmp_path_factory):
    """A folder with four idx.gz files in the format of Fashion-MNIST, with generated images."""
    folder = tmp_path_factory.mktemp('fashion')
    train_images, train_labels, test_images, test_labels = fashion_mnist.generate(2600, 500)
    for part, arrays in (('train', (train_images, train_labels)), ('t10k', (test_images, test_labels))):
        for name, array in zip(('images-idx3', 'labels-idx1'), arrays):
            header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, '>u4').tobytes()
            with gzip.open(folder / (f'{part}-{name}-ubyte.gz'), 'wb', compresslevel=1) as stream:
                stream.write(header + array.tobytes())
    return folder


@pytest.mark.stress
def test_lenet_prints_its_devices_and_one_line_per_epoch(stand_in, call):
    data = f'--data_dir={stand_in}'
    results = [runner('lenet_fashion_mnist.py', data, f'--towers={k}', '--epochs=2')
               for k, runner in ((1, call), (3, run))]
    for k, result in zip((1, 3), results):
        assert result.returncode == 0 and result.stderr == '', result.stderr
        lines = result.stdout.splitlines()
        assert [line for line in lines if 'is not the published file (its checksum differs)' in line] == lines[:4]
        del lines[:4]
        assert lines[0].startswith(f'towers     {k} on ')
        assert 'smaller batch' in lines[1] and ' 40 images' in lines[1]
        assert len(lines) == 4
        for epoch, line in enumerate(lines[2:], 1):
            assert re.fullmatch(f'epoch {epoch}, time \\d+\\.\\d sec, test acc [01]\\.\\d\\d', line)


def first_step(images, labels, num_towers):
    """Returns how LeNet's variables change in its first step with towers, {name: change}, at the rate 1000.

    The rate makes the changes large relative to the rounding of the variables. For 0 towers, TensorFlow computes the
    gradients of the mean loss over the batch.
    """
    with tf.Graph().as_default():
        images, labels = tf.constant(images), tf.constant(labels, tf.int32)
        if num_towers:
            devices = Devices(tuple((f'/cpu:{k}',) for k in range(num_towers)), on_gpus=False)
            step = lenet_fashion_mnist.build(images, labels, devices, images.shape[0], 1000.0)
        else:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=labels, logits=lenet_fashion_mnist.lenet(images)))
            step = tf.train.GradientDescentOptimizer(1000.0).minimize(loss)
        primaries = tf.trainable_variables()[:8]
        with tf.Session(config=tf.ConfigProto(device_count={'CPU': 3}, allow_soft_placement=True)) as session:
            initialise(session)
            before = session.run(primaries)
            session.run(step)
            return {variable.op.name: after - start
                    for variable, start, after in zip(primaries, before, session.run(primaries))}


def test_lenet_on_three_towers_takes_the_step_of_the_whole_batch():
    images, labels, *_ = fashion_mnist.generate(64, 1)
    changes, expected = first_step(images, labels, 3), first_step(images, labels, 0)  # shares of unequal sizes
    assert changes.keys() == expected.keys()
    for name, change in expected.items():
        assert np.abs(change).max() > 0, name
        np.testing.assert_allclose(changes[name], change, atol=1e-3 * np.abs(change).max(), err_msg=name)


@pytest.mark.stress
def test_lenet_learns_the_augmented_images_over_several_epochs(tmp_path, monkeypatch, call):
    monkeypatch.setattr(fashion_mnist, 'URL', 'http://127.0.0.1:9/')  # nothing listens there
    result = call('lenet_fashion_mnist.py', f'--data_dir={tmp_path}', '--towers=2', '--tower_device=cpu')
    first, second, third, fourth = map(float, re.findall(r'test acc (.*)', result.stdout))
    assert first < 0.2 and second < 0.5 < third < fourth < 0.9


def test_without_a_network_connection_generated_images_are_used_and_reported(tmp_path, monkeypatch, call):
    monkeypatch.setattr(fashion_mnist, 'URL', 'http://127.0.0.1:9/')  # nothing listens there
    result = call('lenet_fashion_mnist.py', f'--data_dir={tmp_path}', '--batch_size=25601')
    assert re.match(r'images     generated, because http://127.0.0.1:9/train\S+ cannot be reached', result.stdout)
    assert result.returncode == 2 and 'there are 25600 images' in result.stderr
    assert os.listdir(tmp_path) == []


def test_a_corrupt_file_is_named(stand_in, tmp_path, call):
    (tmp_path / 'train-images-idx3-ubyte.gz').write_bytes(b'broken')
    result = call('lenet_fashion_mnist.py', f'--data_dir={tmp_path}')
    line, = result.stderr.splitlines()
    assert result.returncode == 2 and 'train-images-idx3-ubyte.gz is not an idx.gz file' in line


@pytest.mark.parametrize('variable_update', ['parameter_server', 'replicated'])
def test_a_users_script_has_the_variables_of_one_device(variable_update):
    loss, _, one = own_script.train(1, 20, variable_update)
    loss_of_4, _, four = own_script.train(4, 20, variable_update)
    assert loss_of_4 == pytest.approx(loss, abs=1e-5) and loss < np.log(own_script.CLASSES)
    plain_variables = steps_of_plain_script(20)
    for name, value in one.items():
        assert value.tobytes() == plain_variables[name].tobytes()
        np.testing.assert_allclose(four[name], value, rtol=0, atol=2e-5)


def steps_of_plain_script(steps):
    """Returns the variables after steps of the script's step function, in plain TensorFlow 1."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(0)  # the default seed of the script's graph
        words, topics = own_script.sentences(4096)
        data = tf.data.Dataset.from_tensor_slices(dict(words=words, topics=topics)).repeat()
        batch = tf.data.make_one_shot_iterator(data.batch(own_script.BATCH, drop_remainder=True)).get_next()
        _, train_op = own_script.step(batch)
        session.run(tf.global_variables_initializer())
        for _ in range(steps):
            session.run(train_op)
        return session.run({each.op.name: each for each in tf.trainable_variables()})


@pytest.mark.stress
def test_the_users_script_runs_in_its_own_process():
    shown = run('own_script.py', '--devices=4', '--steps=30').stdout
    assert shown.startswith('30 steps on 4 devices: loss ')
