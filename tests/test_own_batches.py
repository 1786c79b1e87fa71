"""Model functions on users' data sets train, evaluate and predict as in plain TensorFlow 1."""
import contextlib
import csv
import functools
import json
import re
import subprocess
import sys

import numpy as np
import pytest

import cifar10
from cifar10.base.directories import EVALUATIONS
from cifar10.base.errors import UsageError
from cifar10.base.graphs import seeded_graph
from cifar10.base.registry import DATASETS
from cifar10.data.pipeline import started
from cifar10.run import metrics
from cifar10.settings.training import train_settings
from cifar10.training import decisions
from cifar10.training.run import Run
from cifar10.training.start import prepared
from tests import own_estimators
from tests.helpers import (
    ROOT,
    assert_same_bits,
    go_back,
    last_variables,
    mostly_stress,
    run_forked,
    scalars,
    tf,
    train,
)

FILE = f'{ROOT}/tests/own_estimators.py'
BATCH = 4


def with_data(model, data, folder, **changes):
    """Returns the settings of a run of a model function on a data set, both from own_estimators.py."""
    return train_settings(**{**dict(
        network=f'{FILE}:{model}', dataset=f'{FILE}:{data}', train_dir=str(folder), batch_size=BATCH, max_steps=15,
        tower_device='cpu', summary_steps=0, save_steps=10), **changes})


def first_values(settings):
    """Returns the variables before the first step."""
    plan, _ = decisions.plan(settings, *prepared(settings)[:2])
    run = Run(plan)
    with run.opened():
        return run.variables(run.saved)


def adagrad(variable, gradient, state):
    """The step of tf.train.AdagradOptimizer(0.1), computed by hand."""
    total = state.setdefault('Adagrad', np.full(variable.shape, 0.1, np.float32))
    total += gradient ** 2
    variable -= np.float32(0.1) * gradient / np.sqrt(total)


def adam(variable, gradient, state):
    """The step of tf.train.AdamOptimizer(0.05), computed by hand."""
    m, v = (state.setdefault(name, np.zeros(variable.shape, np.float32)) for name in ('Adam', 'Adam_1'))
    state['steps'] = steps = state.get('steps', 0) + 1
    m += 0.1 * (gradient - m)
    v += 0.001 * (gradient ** 2 - v)
    variable -= np.float32(0.05 * np.sqrt(1 - 0.999 ** steps) / (1 - 0.9 ** steps)) * m / (np.sqrt(v) + 1e-8)


def plain(data, loss_of, values, towers, steps, update):
    """Trains with plain TensorFlow 1 on one device; each step uses the mean gradient of `towers` batches."""
    with seeded_graph(0):
        dataset = data('train', BATCH).filter(
            lambda *batch: tf.equal(tf.shape(tf.nest.flatten(batch, expand_composites=True)[-1])[0], BATCH)
            if data is own_estimators.prices else tf.equal(batch[0].nrows(), BATCH)).repeat()
        iterator = tf.data.make_initializable_iterator(dataset)
        loss = loss_of(iterator.get_next())
        variables = tf.trainable_variables()
        gradients = [tf.convert_to_tensor(each) for each in tf.gradients(loss, variables)]
        with tf.Session() as session:
            session.run([iterator.initializer, tf.tables_initializer()])
            values = {each.op.name: np.array(values[each.op.name]) for each in variables}
            states = {name: {} for name in values}
            for _ in range(steps):
                for each in variables:
                    each.load(values[each.op.name], session)
                found = [session.run(gradients) for _ in range(towers)]
                for name, of_towers in zip(values, zip(*found)):
                    update(values[name], np.mean(of_towers, 0), states[name])
    return values


def loss_of_prices(batch):
    features, labels = batch
    return tf.losses.mean_squared_error(labels, own_estimators.regression_of(features)[1])


MODELS = {'regression': ('prices', loss_of_prices, adagrad),
          'language_model': ('sentences', lambda batch: own_estimators.words_of(batch)[2], adam)}


@pytest.fixture(scope='module')
def trained_once(tmp_path_factory):
    """A function that returns the settings of a trained run of a model in MODELS, with three evaluations."""
    @functools.cache
    def of(network, towers=2, devices=2, mode='parameter_server'):
        settings = with_data(
            network, MODELS[network][0], tmp_path_factory.mktemp(network) / 'train', num_gpus=devices,
            num_towers=towers, variable_update=mode, save_steps=8, eval_steps=5, keep_best=True)
        with tf.Graph().as_default():
            train(settings)
        return settings
    return of


@pytest.mark.parametrize('network', MODELS)
@pytest.mark.parametrize('towers, devices, mode', mostly_stress([
    (2, 2, 'parameter_server'), (4, 2, 'parameter_server'), (4, 4, 'replicated')], (2, 2, 'parameter_server')))
def test_towers_take_the_steps_of_plain_tensorflow(network, towers, devices, mode, trained_once, tmp_path):
    dataset, loss_of, update = MODELS[network]
    settings = trained_once(network, towers, devices, mode)
    first = first_values(settings.replace(train_dir=str(tmp_path / 'new')))
    expected = plain(getattr(own_estimators, dataset), loss_of, first, towers, 15, update)
    found = last_variables(settings.run.train_dir)
    assert found['examples_seen'] == 15 * towers * BATCH
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize('network', mostly_stress(MODELS, 'language_model'))
def test_a_resumed_run_has_the_bits_of_an_unbroken_one(network, trained_once):
    """The run resumes in the second epoch, on one device."""
    whole = trained_once(network)
    go_back(whole.run.train_dir, 'resumed')
    again = whole.replace(train_dir=whole.run.train_dir.replace('train', 'resumed'), num_gpus=1)
    assert_same_bits(train(again), last_variables(whole.run.train_dir))


@pytest.mark.parametrize('changes, told', [
    (dict(network='classic'), ['--network=classic', 'features, labels and mode']),
    (dict(network=f'{ROOT}/tests/linear.py:network'), ['features, labels and mode']),
    (dict(image_size=64), ['--image_size=64', 'leave it out']),
    (dict(augmentation='none'), ['--augmentation=none', 'leave it out']),
    (dict(test_fraction=0.5), ['--test_fraction=0.5', 'leave it out']),
    (dict(max_steps=None, epochs=2), ['--epochs=2', '--max_steps']),
    (dict(batch_size=50), ['no batch of 50 examples', '--batch_size']),
    (dict(variable_update='mirrored'), ['--variable_update=replicated']),
    (dict(dataset='regression'), ['regression', '(mode, batch_size)']),
    (dict(dataset='not_batched'), ['dataset.batch(batch_size)']),
    (dict(dataset='of_tensors'), ['return a tf.data.Dataset'])])
def test_invalid_runs_are_refused_in_one_line(changes, told, tmp_path):
    if 'dataset' in changes:
        changes = dict(changes, dataset=f"{FILE}:{changes['dataset']}")
    with pytest.raises(UsageError) as refused:
        train(with_data('regression', 'prices', tmp_path / 'train', **changes))
    assert all(part in str(refused.value) for part in told), refused.value
    assert '\n' not in str(refused.value) and not (tmp_path / 'train').exists()


def test_a_batch_size_that_does_not_divide_the_position_is_refused(trained_once):
    with pytest.raises(UsageError, match='--batch_size=7 does not divide the 120 examples.*use --batch_size=4'):
        train(trained_once('regression').replace(batch_size=7, max_steps=20))
    np.testing.assert_array_equal(np.ravel(batches('prices', batch_size=2)), np.ravel(batches('prices')[:4]))


def test_a_resume_reports_the_time_of_its_skip_and_a_missing_seed(own, tmp_path, capsys):
    name = own("""
import time
import numpy as np
import tensorflow.compat.v1 as tf
def slow(x):
    time.sleep(0.05)
    return x
def data(mode, batch_size):
    drawn = np.random.RandomState(None).uniform(size=[80, 3]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices(drawn).batch(batch_size)
    return dataset.map(lambda x: tf.ensure_shape(tf.py_func(slow, [x], tf.float32), [None, 3]))
def model(features, labels, mode):
    loss = tf.reduce_mean((features @ tf.get_variable('w', [3, 1])) ** 2)
    return tf.estimator.EstimatorSpec(
        mode, None, loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step()))
""", 'data')
    for steps, is_resumed in ((20, False), (22, True)):
        train(with_data('x', 'x', tmp_path / 'train', network=name.replace(':data', ':model'), dataset=name,
                        max_steps=steps))
        printed = capsys.readouterr().out
        assert ('the first batch differs' in printed) == ('with the skip' in printed) == is_resumed
    assert float(re.search(r'([\d.]+) s first step, with the skip', printed)[1]) >= 1.0


def plain_evaluation(network, folder, mode='eval'):
    """Returns (loss, metrics, predictions) of the newest checkpoint, computed with plain TensorFlow 1."""
    data, model = getattr(own_estimators, MODELS[network][0]), getattr(own_estimators, network)
    with seeded_graph(0), tf.Session() as session:
        tf.train.get_or_create_global_step()
        dataset = data(mode, BATCH)
        iterator = tf.data.make_initializable_iterator(dataset)
        batch = iterator.get_next()
        features, labels = batch if isinstance(batch, tuple) else (batch, None)
        count = tf.shape(features['rooms'])[0] if isinstance(features, dict) else features.nrows()
        spec = model(features, labels, mode)
        pairs = dict(spec.eval_metric_ops or {})
        session.run([iterator.initializer, tf.tables_initializer(), tf.local_variables_initializer()])
        tf.train.Saver(tf.global_variables()).restore(session, tf.train.latest_checkpoint(folder))
        losses, rows = [], []
        with contextlib.suppress(tf.errors.OutOfRangeError):
            while True:
                if mode == 'infer':
                    rows.append(session.run(spec.predictions))
                else:
                    losses.append(session.run([spec.loss, count, [update for _, update in pairs.values()]])[:2])
        if mode == 'infer':
            return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        loss = sum(loss * count for loss, count in losses) / sum(count for _, count in losses)
        return dict(loss=loss, **session.run({name: value for name, (value, _) in pairs.items()}))


@pytest.mark.parametrize('network', MODELS)
def test_an_evaluation_has_the_loss_and_metrics_of_plain_tensorflow(network, trained_once, tmp_path):
    folder = trained_once(network).run.train_dir
    expected = plain_evaluation(network, folder)
    between_steps = metrics.read(folder, metrics.EVAL)[-1]
    later = cifar10.evaluate(train_dir=folder, eval_dir=str(tmp_path / 'eval'), tower_device='cpu', batch_size=5)
    for found in (between_steps, later.figures):
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert between_steps['examples'] == later.examples == 21
    points = dict(scalars(folder, 'loss', EVALUATIONS))
    assert points[15] == pytest.approx(expected['loss'], rel=1e-5)


@pytest.mark.parametrize('network', MODELS)
def test_predictions_match_plain_tensorflow(network, trained_once, call, tmp_path):
    folder = trained_once(network).run.train_dir
    expected = plain_evaluation(network, folder, 'infer')
    found = cifar10.predict(train_dir=folder, tower_device='cpu')
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5)
    assert call('cifar10_eval.py', f'--checkpoint_dir={folder}', f"--csv={tmp_path / 'found.csv'}", '--tower_device=cpu'
                ) == (0, '')
    scalars_only = [name for name, value in expected.items() if value.ndim == 1]
    with open(tmp_path / 'found.csv') as stream:
        rows = [*csv.DictReader(stream)]
    assert len(rows) == 10 and [*rows[0]] == scalars_only
    for name in scalars_only:
        np.testing.assert_allclose([float(row[name]) for row in rows], expected[name], rtol=1e-5)


def test_an_autoencoder_without_labels_trains_evaluates_and_predicts(tmp_path):
    train(with_data('autoencoder', 'points', tmp_path / 'train', num_gpus=2, max_steps=100, eval_steps=50))
    first, last = metrics.read(str(tmp_path / 'train'), metrics.EVAL)
    assert last['examples'] == 21 and last['loss'] < 0.1 * first['loss']
    assert last['error'] == pytest.approx(last['loss'], rel=1e-5)
    found = cifar10.predict(train_dir=str(tmp_path / 'train'), tower_device='cpu')
    variables = last_variables(tmp_path / 'train')
    with tf.Graph().as_default(), tf.Session() as session:
        batches = tf.data.make_one_shot_iterator(own_estimators.points('infer', 10)).get_next()
        expected = session.run(batches) @ variables['encoder']
    np.testing.assert_allclose(found['code'], expected, rtol=1e-5)
    np.testing.assert_allclose(found['found'], expected @ variables['decoder'], rtol=1e-5)


def test_other_data_is_evaluated_without_writing_and_any_dataset_predicted(trained_once, own, tmp_path):
    folder = trained_once('regression').run.train_dir
    other = own("""
from tests import own_estimators
def data(mode, batch_size):
    return own_estimators.prices('train', batch_size).take(4)
""", 'data')
    found = cifar10.evaluate(train_dir=folder, eval_dir=str(tmp_path / 'eval'), dataset=other, tower_device='cpu')
    assert found.examples == 16 and not (tmp_path / 'eval').exists()
    (tmp_path / 'script.py').write_text(f"""
import tensorflow as tf
import cifar10
rooms, city, tags = [2.0, 3.0], ['Rome', 'Oslo'], tf.sparse.from_dense([['sea', ''], ['', 'lift']])
data = tf.data.Dataset.from_tensors(dict(rooms=rooms, city=city, tags=tags))
print(cifar10.predict(data.concatenate(data), train_dir={folder!r}, tower_device='cpu')['price'].tolist())
""")
    first = json.loads(run_forked([sys.executable, str(tmp_path / 'script.py')]).stdout.splitlines()[-1])
    assert len(first) == 4 and first[:2] == first[2:] and first[0] != first[1]


@pytest.mark.parametrize('flags, told', [
    (['--image=picture.png'], '--image'), (['--export_dir=exported'], '--export_dir'), (['--per_class'], '--per_class'),
    (['--num_examples=3'], '--num_examples=3'), (['--eval_data=train_eval'], '--eval_data=train_eval'),
    (['--dataset=cifar100'], '--dataset=cifar100')])
def test_an_evaluation_of_batches_refuses_flags_for_images(flags, told, trained_once, call, tmp_path):
    folder = trained_once('regression').run.train_dir
    status, error = call('cifar10_eval.py', f'--checkpoint_dir={folder}', '--run_once', '--tower_device=cpu',
                         f"--eval_dir={tmp_path / 'eval'}", *flags)
    assert status == 2 and told in error and error.count('\n') == 1, error


PAGE = (ROOT / 'docs' / 'tf1.md').read_text()
THEIRS = """
import numpy as np
import tensorflow as tf
class Hook(tf.train.SessionRunHook):
    def begin(self):
        raise AssertionError
def input_fn(path, batch_size, shuffle):
    x = np.random.default_rng(0).standard_normal([40 if path == 'train.csv' else 7, 3]).astype(np.float32)
    dataset = tf.data.Dataset.from_tensor_slices((dict(x=x), x.sum(1)))
    return (dataset.shuffle(40).repeat() if shuffle else dataset).batch(batch_size)
def model_fn(features, labels, mode, params):
    found = tf.squeeze(tf.layers.dense(features['x'], 1), 1)
    loss = tf.losses.mean_squared_error(labels, found)
    train_op = tf.train.AdamOptimizer(params['learning_rate']).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, dict(found=found), loss, train_op, training_hooks=[Hook()])
"""


def test_the_adapter_of_the_page_trains(own, tmp_path, capsys):
    (tmp_path / 'theirs.py').write_text(THEIRS)
    diff = re.search(r'```diff\n(.*?)```', PAGE, re.S)[1]
    name = own('import theirs\n' + '\n'.join(re.findall(r'^\+(.*)', diff, re.M)), 'model')
    settings = with_data('x', 'x', tmp_path / 'train', network=name, dataset=name.replace(':model', ':data'),
                         max_steps=20, eval_steps=10, save_steps=10, max_to_keep=1, log_frequency=5, seed=3)
    train(settings)
    printed = capsys.readouterr().out
    assert 'training_hooks' in printed and 'best' not in printed
    first, last = metrics.read(str(tmp_path / 'train'), metrics.EVAL)
    assert last['step'] == 20 and last['examples'] == 7 and last['loss'] < first['loss']
    assert [*(tmp_path / 'train').glob('*.index')] == [tmp_path / 'train' / 'model.ckpt-20.index']


def batches(data, towers=range(1), num_towers=1, batch_size=BATCH):
    """Returns the labels of eight batches of some towers, beginning at the 12th example."""
    source = DATASETS.load(f'{FILE}:{data}')(batch_size, 0)
    with tf.Graph().as_default(), tf.Session() as session:
        loaded, _ = source.load()
        iterator, begin = started(
            source.stream(loaded, tf.constant(12, tf.int64), None, towers, num_towers, None), [])
        labels = iterator.get_next()[1]
        session.run(begin)
        return [session.run(labels).tolist() for _ in range(8)]


@pytest.mark.parametrize('towers', [range(0, 4, 2), [1, 2], range(4)])
def test_workers_read_the_batches_of_their_towers(towers):
    whole = batches('prices')
    assert batches('prices', towers=towers, num_towers=4)[:4] == [whole[k] for k in range(8) if k % 4 in towers][:4]


def test_a_function_may_return_tensors_of_its_own_iterator():
    assert batches('by_iterator') == batches('prices')


@pytest.mark.parametrize('data, changes, told', [
    ('prices', dict(variable_update='async'), 'use parameter_server or replicated'),
    ('of_python', {}, 'calls Python functions')])
def test_data_that_other_workers_cannot_read_is_refused_in_a_cluster(data, changes, told, tmp_path):
    settings = with_data('regression', data, tmp_path / 'train', **changes)
    devices, images, _ = prepared(settings)
    with pytest.raises(UsageError, match=told):
        decisions.plan(settings, devices.spread(2, 0), images)


@pytest.mark.stress
def test_a_cluster_has_the_bits_of_one_machine(tmp_path):
    flags = [f'--network={FILE}:regression', f'--dataset={FILE}:prices', '--batch_size=4', '--max_steps=15',
             '--tower_device=cpu']
    one = [sys.executable, 'multi_gpu_train.py', *flags, '--num_gpus=2', f"--train_dir={tmp_path / 'one'}"]
    subprocess.run(one, cwd=ROOT, check=True)
    two = [sys.executable, 'multi_gpu_train.py', *flags, f"--train_dir={tmp_path / 'two'}"]
    subprocess.run([sys.executable, '-m', 'cifar10', 'local-cluster', '--workers=2', '--', *two], cwd=ROOT, check=True)
    assert_same_bits(last_variables(tmp_path / 'two'), last_variables(tmp_path / 'one'))
