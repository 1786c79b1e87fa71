"""Warm starts with the variables of another model, and frozen variables."""
import json
import os
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import registry
from cifar10.base.errors import UsageError
from cifar10.base.graphs import AVERAGE as SUFFIX
from cifar10.base.graphs import MOVING_STATISTICS
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import datasets
from cifar10.model.layers import batch_normalisation
from cifar10.model.untrained_variables import freezing, is_frozen
from cifar10.parallel import devices
from cifar10.run import checkpoints as of_run
from cifar10.run.folder import look
from cifar10.settings.training import train_settings
from cifar10.tools import check
from cifar10.training import trainer, warm_start
from tests.helpers import (
    ROOT,
    Tasks,
    ancestors,
    assert_close,
    assert_same_bits,
    build_training,
    checkpoints,
    last_variables,
    mostly_stress,
    rewrite,
    train,
    update_mode,
)

NETWORKS = '''
import tensorflow.compat.v1 as tf
from cifar10.model import Network
from cifar10.model.layers import batch_normalisation, read, seed_of

def normal(shape, dtype=tf.float32, partition_info=None):
    return tf.random.stateless_truncated_normal(shape, seed_of('weights'), stddev=0.3, dtype=dtype)

def narrow(images, num_classes, training):
    with tf.variable_scope('first'):
        x = tf.nn.conv2d(images, tf.cast(read('weights', [3, 3, 3, 4], normal), images.dtype), 2, 'SAME')
        x = tf.nn.relu(batch_normalisation(x, training, momentum=0.6, scale=False))
    x = tf.cast(tf.reduce_max(x, [1, 2]), tf.float32)
    with tf.variable_scope('second'):
        x = tf.nn.relu(x @ read('weights', [4, 5], normal))
    with tf.variable_scope('head'):
        return x @ read('weights', [5, num_classes], normal)

def other(images, num_classes, training):
    return tf.cast(tf.reduce_mean(images, [1, 2]), tf.float32) @ read('weights', [3, num_classes], normal)

def registered(function):
    return Network(lambda images, training=False, num_classes=10: function(images, num_classes, training))
NARROW, OTHER = map(registered, (narrow, other))
'''
FIRST = ('first/moving_mean', 'first/moving_variance', 'first/beta', 'first/weights')
TRAINED = ('first/beta', 'first/weights', 'second/weights', 'head/weights')


@pytest.fixture(scope='module')
def file(tmp_path_factory):
    """The file of the networks. They are registered too, because users' networks are checked at each start."""
    path = tmp_path_factory.mktemp('networks') / 'nets.py'
    path.write_text(NETWORKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path.parent)
        for name in ('narrow', 'other'):
            patch.setitem(registry.NETWORKS, name, f'nets:{name.upper()}')
        yield path


@pytest.fixture
def tuned(file, settings):
    """A function that makes the settings of a run with one of these networks."""
    return lambda network='narrow', **changes: settings(**dict(dict(network=network), **changes))


@pytest.fixture(scope='module')
def source(file, tmp_path_factory, data_dir):
    """(The train_dir of a run of the narrow network with moving averages, the values that a warm start takes)."""
    folder = str(tmp_path_factory.mktemp('source') / 'train')
    with tf.Graph().as_default():
        found = train(train_settings(
            network='narrow', dataset='shapes', data_dir=data_dir, train_dir=folder, batch_size=16,
            max_steps=20, summary_steps=0, tower_device='cpu'))
    assert any(np.abs(found[name] - found[name + SUFFIX]).max() > 1e-4 for name in TRAINED)
    values = {name: found.get(name + SUFFIX, found[name]) for name in (*FIRST, 'second/weights', 'head/weights')}
    return folder, values


@pytest.fixture(scope='module')
def tuning_steps(file, source, tmp_path_factory, data_dir):
    """The variables after a warm start and four steps of one tower of 32, with a frozen first layer."""
    with tf.Graph().as_default():
        return train(train_settings(
            network='narrow', dataset='shapes', data_dir=data_dir, warm_start=source[0], freeze='^first/',
            train_dir=str(tmp_path_factory.mktemp('tuning')), batch_size=32, max_steps=4, optimizer='momentum',
            learning_rate=0.01, summary_steps=0, tower_device='cpu'))


@pytest.mark.parametrize('mode', mostly_stress(UPDATE_MODES, 'parameter_server'))
def test_every_mode_starts_with_the_taken_values_and_keeps_frozen_ones(mode, tuned, source, tuning_steps):
    # Copies that started with different values than tower 0's would change the steps.
    found = train(tuned(variable_update=mode, num_gpus=2, batch_size=16, warm_start=source[0], freeze='^first/',
                        max_steps=4, optimizer='momentum', learning_rate=0.01,
                        **dict(local_steps=1) if mode == 'local' else {}))
    assert found.keys() == tuning_steps.keys()
    for name in FIRST:
        np.testing.assert_array_equal(found[name], source[1][name], err_msg=name)
    for name in ('second/weights', 'head/weights'):
        distance = np.abs(found[name] - source[1][name]).max()
        assert 0 < distance < 0.1 and name + SUFFIX in found and name + '/Momentum' in found
    assert not [name for name in found if name.startswith('first/') and name not in FIRST]  # neither slot nor average
    if mode not in ('async', 'local'):
        assert_close(found, tuning_steps)


def test_moving_averages_start_at_their_variables_values(tuned, source):
    found = train(tuned(warm_start=source[0], max_steps=1, learning_rate=0.0))
    for name, value in source[1].items():
        if 'moving' not in name:
            np.testing.assert_array_equal(found[name], value, err_msg=name)
            np.testing.assert_array_equal(found[name + SUFFIX], value, err_msg=name)
    assert found['global_step'] == 1 and found['examples_seen'] == 8


def test_a_networks_own_averages_are_taken_unchanged(settings, tmp_path):
    network, name = f'{ROOT}/tests/idioms.py:exponential_moving_average', 'layer/layer/batch_mean' + SUFFIX
    first = train(settings(network=network, max_steps=2, train_dir=str(tmp_path / 'first')))
    second = train(settings(network=network, max_steps=1, train_dir=str(tmp_path / 'second'), freeze='batch_mean',
                            warm_start=str(tmp_path / 'first')))
    assert first[name].any()
    np.testing.assert_array_equal(second[name], first[name])


def test_a_last_layer_of_other_classes_is_reported(tuned, source, capsys, tmp_path):
    shutil.copytree(source[0], tmp_path / 'other')
    config = tmp_path / 'other' / 'config.json'
    stored = json.loads(config.read_text())
    config.write_text(json.dumps(dict(stored, classes=stored['classes'][::-1])))
    train(tuned(max_steps=1, warm_start=str(tmp_path / 'other'), train_dir=str(tmp_path / 'warm')))
    output = capsys.readouterr().out
    assert 'warm start 6 of 6 variables' in output
    assert 'was trained with other classes (now ' in output


@pytest.mark.stress
def test_taken_values_override_values_computed_from_the_images(settings, tmp_path, data_dir):
    flags = dict(preset='fast', epochs=0.032, precision='fp32', sizes='16', schedule='linear')
    train(settings(max_steps=None, **flags))
    prefix = checkpoints(settings().run.train_dir)[-1]
    rewrite(prefix, **{'whiten/weights': np.full([2, 2, 3, 24], 0.25, np.float32)})
    found = train(settings(max_steps=None, **flags, train_dir=str(tmp_path / 'warm'), warm_start=prefix))
    np.testing.assert_array_equal(found['whiten/weights'], np.full([2, 2, 3, 24], 0.25, np.float32))


def test_an_impossible_warm_start_is_refused_and_writes_nothing(tuned, source, tmp_path):
    (tmp_path / 'empty').mkdir()
    (tmp_path / 'half').mkdir()
    (tmp_path / 'half' / 'checkpoint').touch()
    (tmp_path / 'broken.index').write_text('of something else')
    for flags, part in (
            (dict(warm_start=str(tmp_path / 'nothing')),
             'there is no such checkpoint; give the train_dir of a run, .*/model.ckpt-1000$'),
            (dict(warm_start=str(tmp_path / 'empty')), 'there is no such checkpoint; give the train_dir of a run'),
            (dict(warm_start=os.path.join(source[0], 'checkpoint')), 'is only a list of checkpoints; give'),
            (dict(warm_start=str(tmp_path / 'half')), 'there is no such checkpoint; give the train_dir of a run'),
            (dict(warm_start=str(tmp_path / 'broken')), r'cannot be read \('),
            (dict(warm_start=source[0], network='other'), r'such as weights \[3, 10\]; give a checkpoint of a similar'),
            (dict(freeze='second$'), 'matches no variable; the network has first/weights'),
            (dict(freeze='weights|beta'), r'--freeze=weights\|beta matches all ')):
        with pytest.raises(UsageError, match=part) as refused:
            trainer.train(tuned(**flags))
        assert '\n' not in str(refused.value)
        assert not checkpoints(tuned().run.train_dir)
        assert not os.path.exists(os.path.join(tuned().run.train_dir, 'config.json'))
    with pytest.raises(UsageError, match=r'--freeze=\( is not a regular expression'):
        tuned(freeze='(')


@pytest.mark.stress
def test_the_source_is_recorded_and_a_resume_ignores_the_flag_with_a_line(tuned, source, tmp_path, capsys):
    prefix = checkpoints(source[0])[-1]
    flags = dict(freeze='^first/', optimizer='momentum', learning_rate=0.01)
    whole = train(tuned(warm_start=source[0], max_steps=4, train_dir=str(tmp_path / 'whole'), **flags))
    train(tuned(warm_start=source[0], max_steps=2, **flags))
    capsys.readouterr()
    assert_same_bits(train(tuned(warm_start='/nowhere', max_steps=4, **flags)), whole)
    assert 'ignored    --warm_start=/nowhere: the run continues from its own checkpoint\n' in capsys.readouterr().out
    first, second = look(tuned().run.train_dir).started
    assert [start.settings.run.warm_start for start in (first, second)] == [prefix, prefix]
    assert re.fullmatch('[0-9a-f]{64}', first.warm_start_sha256) and second.warm_start_sha256 is None
    check.check(tuned(warm_start=source[0], train_dir=str(tmp_path / 'new')))
    assert f'warm start 6 of 6 variables, as moving averages, from {prefix}\n' in capsys.readouterr().out
    with pytest.raises(UsageError, match=r'a run of --freeze=\S+first/\S* For a run without --freeze use'):
        trainer.train(tuned(max_steps=5, **dict(flags, freeze=None)))


def test_freezing_initial_values_gets_a_warning(tuned, capsys):
    train(tuned(freeze='first', max_steps=1))
    assert ('warning: --freeze=first keeps first/weights, first/beta, first/moving_mean, first/moving_variance at '
            'untrained initial values; start from a model') in capsys.readouterr().out


def needed(settings, data_dir, freeze, mode='parameter_server'):
    """Returns (the types of the convolution gradients that a step computes, the variables that it trains)."""
    cpus = devices.choose(2, 'cpu')
    with tf.Graph().as_default():
        built = build_training(settings(num_gpus=2, freeze=freeze), datasets.prepare('shapes', data_dir), cpus,
                               update_mode(mode, cpus))
        found = set().union(*(ancestors(each['update']) for each in built.fetches))
        return sorted(op.type for op in found if op.type.startswith('Conv2DBackprop')), tf.trainable_variables()


@pytest.mark.stress
@pytest.mark.classic
def test_no_gradients_are_computed_for_frozen_variables(settings, data_dir):
    both = ['Conv2DBackpropFilter'] * 2  # for the two towers
    # Only conv2's input needs a gradient, to train conv1; the images need none.
    assert needed(settings, data_dir, None)[0] == both * 2 + ['Conv2DBackpropInput'] * 2
    for mode in ('parameter_server', 'mirrored'):  # mirrored does not use the common skeleton
        assert needed(settings, data_dir, '^conv2/', mode)[0] == both + ['Conv2DBackpropInput'] * 2, mode
    assert needed(settings, data_dir, '^conv1/')[0] == both
    found, trained = needed(settings, data_dir, 'conv')
    assert found == [] and len(trained) == 6


@pytest.mark.parametrize('pattern, by_batch', [('norm/moving', False), ('moving_mean', True), (None, True)])
def test_a_frozen_batch_normalisation_uses_its_moving_statistics(pattern, by_batch):
    x = np.random.default_rng(0).normal(3, 2, size=(4, 5, 5, 8)).astype(np.float32)
    with tf.variable_scope('replica_1'), freezing(pattern), tf.variable_scope('norm'):
        y = batch_normalisation(tf.constant(x), True, scale=False)
        mean, variance = tf.global_variables()[1:]
        assert (is_frozen(mean), is_frozen(variance)) == (pattern is not None, pattern == 'norm/moving')
    assert not is_frozen(mean)
    moved = [statistic.variable for statistic in tf.get_collection(MOVING_STATISTICS)]
    assert moved == ([variance, mean][:1] if pattern == 'moving_mean' else [mean, variance] if by_batch else [])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3) if by_batch else x / np.sqrt(1 + 1e-3)
        np.testing.assert_allclose(session.run(y), expected, atol=1e-4)


@pytest.mark.stress
def test_in_a_cluster_the_chief_takes_the_variables(source, tuning_steps, tmp_path, data_dir, file):
    flags = dict(network=f'{file}:narrow', dataset='shapes', data_dir=data_dir, warm_start=source[0], freeze='^first/',
                 train_dir=tmp_path / 'cluster', batch_size=16, max_steps=4, optimizer='momentum', learning_rate=0.01)
    with Tasks(workers=2, ps=1, **flags) as tasks:
        assert all(status == 0 for status, _ in tasks.ends().values())
    assert_close(last_variables(tmp_path / 'cluster'), tuning_steps)


@pytest.mark.classic
def test_the_tutorials_checkpoint_is_taken_completely(classic_checkpoint_dir, settings, capsys):
    found = train(settings(warm_start=classic_checkpoint_dir, max_steps=1, learning_rate=0.0))
    assert 'warm start 10 of 10 variables, as moving averages, from' in capsys.readouterr().out
    expected = last_variables(classic_checkpoint_dir)
    np.testing.assert_array_equal(found['conv1/weights'], expected['conv1/weights' + SUFFIX])


@pytest.fixture
def saved_as(tmp_path):
    """A function that saves variables by name as a checkpoint without a step and returns its prefix."""
    def save(name, **values):
        with tf.Graph().as_default(), tf.Session() as session:
            made = [tf.get_variable(key, initializer=value) for key, value in values.items()]
            session.run(tf.global_variables_initializer())
            return tf.train.Saver(made).save(session, str(tmp_path / name), write_meta_graph=True)
    return save


def test_any_file_of_a_checkpoint_without_a_step_leads_to_its_prefix(saved_as, tmp_path):
    prefix = saved_as('model.ckpt', w=np.zeros(3, np.float32))
    for given in (str(tmp_path), f'{prefix}.meta', f'{prefix}.data-00000-of-00001'):
        with pytest.raises(UsageError, match=f'^--warm_start={given}.* the prefix of .*, such as {prefix}$') as refused:
            of_run.named('warm_start', given, 'the train_dir of a run, or ')
        assert 'copy the missing files' not in str(refused.value)
    assert of_run.named('warm_start', prefix).prefix == prefix


def test_variables_of_other_types_and_nonfinite_values_are_named(saved_as):
    variables = {name: tf.get_variable(name, [3]) for name in ('v', 'w', 'x')}
    prefix = saved_as('a', v=np.ones(3, np.float32), w=np.ones(3, np.int32), x=np.ones(4, np.float32))
    values, text = warm_start.fitting(of_run.read(prefix), variables)
    assert list(values) == ['v'] and text.endswith('; of another type there: w; of another shape there: x')
    for wrong in (np.nan, np.inf):
        prefix = saved_as('b', v=np.array([1, wrong, 2], np.float32))
        with pytest.raises(UsageError, match=f'^--warm_start={prefix} has values of v that are not finite; give anoth'):
            warm_start.fitting(of_run.read(prefix), variables)
