"""Model functions on data sets of the user's own train, evaluate and predict as in plain TensorFlow 1."""
import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.base.graphs import seeded_graph
from cifar10.settings.training import train_settings
from cifar10.training import decisions
from cifar10.training.run import Run
from cifar10.training.start import prepared
from tests import own_estimators
from tests.helpers import ROOT, assert_same_bits, go_back, tf, train

FILE = f'{ROOT}/tests/own_estimators.py'
BATCH = 4


def with_data(model, data, folder, **changes):
    """Returns the settings of a run of a model function of own_estimators.py on a data set there."""
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
    """The step of tf.train.AdagradOptimizer(0.1), by hand."""
    total = state.setdefault('Adagrad', np.full(variable.shape, 0.1, np.float32))
    total += gradient ** 2
    variable -= np.float32(0.1) * gradient / np.sqrt(total)


def adam(variable, gradient, state):
    """The step of tf.train.AdamOptimizer(0.05), by hand."""
    m, v = (state.setdefault(name, np.zeros(variable.shape, np.float32)) for name in ('Adam', 'Adam_1'))
    state['steps'] = steps = state.get('steps', 0) + 1
    m += 0.1 * (gradient - m)
    v += 0.001 * (gradient ** 2 - v)
    variable -= np.float32(0.05 * np.sqrt(1 - 0.999 ** steps) / (1 - 0.9 ** steps)) * m / (np.sqrt(v) + 1e-8)


def plain(data, loss_of, values, towers, steps, update):
    """Trains by plain TensorFlow 1 on one device, with the mean of the gradients of so many batches in each step."""
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


@pytest.mark.parametrize('network', MODELS)
@pytest.mark.parametrize('towers, devices, mode', [
    (1, 1, 'parameter_server'), (2, 2, 'replicated'), (4, 2, 'parameter_server'), (4, 4, 'replicated')])
def test_towers_take_the_steps_of_plain_tensorflow(network, towers, devices, mode, tmp_path):
    dataset, loss_of, update = MODELS[network]
    settings = with_data(network, dataset, tmp_path / 'train', num_gpus=devices, num_towers=towers,
                         variable_update=mode)
    expected = plain(getattr(own_estimators, dataset), loss_of, first_values(settings), towers, 15, update)
    with tf.Graph().as_default():
        found = train(settings)
    assert found['examples_seen'] == 15 * towers * BATCH
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize('network', MODELS)
def test_a_run_that_goes_on_has_the_bits_of_an_unbroken_one(network, tmp_path):
    """It goes on in the second epoch, and on one device."""
    changes = dict(num_gpus=2, num_towers=2)
    whole = train(with_data(network, MODELS[network][0], tmp_path / 'whole', **changes))
    go_back(tmp_path / 'whole', 'resumed')
    again = with_data(network, MODELS[network][0], tmp_path / 'resumed', **dict(changes, num_gpus=1))
    assert_same_bits(train(again), whole)


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
def test_a_run_that_cannot_be_right_is_refused_in_a_line(changes, told, tmp_path):
    if 'dataset' in changes:
        changes = dict(changes, dataset=f"{FILE}:{changes['dataset']}")
    with pytest.raises(UsageError) as refused:
        train(with_data('regression', 'prices', tmp_path / 'train', **changes))
    assert all(part in str(refused.value) for part in told), refused.value
    assert '\n' not in str(refused.value) and not (tmp_path / 'train').exists()


def test_a_batch_size_that_does_not_divide_the_position_is_refused(tmp_path):
    train(with_data('regression', 'prices', tmp_path / 'train', max_steps=5))
    with pytest.raises(UsageError, match='--batch_size=8 does not divide the 20 examples.*use --batch_size=4'):
        train(with_data('regression', 'prices', tmp_path / 'train', batch_size=8))
    train(with_data('regression', 'prices', tmp_path / 'train', batch_size=2, max_steps=6))


def test_a_warning_names_the_seed_that_a_stream_lacks(own, tmp_path, capsys):
    name = own("""
import numpy as np
import tensorflow.compat.v1 as tf
def data(mode, batch_size):
    drawn = np.random.RandomState(SEED).uniform(size=[20, 3]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(drawn).batch(batch_size)
def model(features, labels, mode):
    loss = tf.reduce_mean((features @ tf.get_variable('w', [3, 1])) ** 2)
    return tf.estimator.EstimatorSpec(
        mode, None, loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step()))
""".replace('SEED', 'None'), 'data')
    for steps, is_warned in ((5, False), (10, True)):
        train(with_data('x', 'x', tmp_path / 'train', network=name.replace(':data', ':model'), dataset=name,
                        max_steps=steps))
        assert ('give random numbers a seed' in capsys.readouterr().out) == is_warned
