"""Whole models with their own loss and train_op: N towers take the steps of plain TensorFlow 1 on the whole batch."""
import dataclasses
import inspect
import re
import sys

import numpy as np
import pytest

import cifar10
from cifar10 import UsageError, on_towers
from cifar10.base.directories import EVALUATIONS
from cifar10.model.network_draws import at_position
from cifar10.own import tf1
from cifar10.parallel import devices
from cifar10.parallel.parameter_server import ParameterServer
from cifar10.run import metrics
from cifar10.settings.training import train_settings
from tests import refused_models, whole_models
from tests.helpers import (
    ROOT,
    Tasks,
    add_tower,
    assert_same_bits,
    evaluated,
    go_back,
    initialise,
    last_variables,
    mostly_stress,
    own_towers,
    rehearsed,
    scalars,
    tf,
    train,
    update_mode,
)
from tests.test_picture_files import encoded
from tests.whole_models import IMAGES, LABELS, TRAINED

PATH = f'{ROOT}/tests/whole_models.py'
STEPS = 6
# Models for the default run: with statistics and an average, and with a sparse gradient.
ALWAYS = ('averages_after_statistics_before', 'embedding')
LAYOUTS = [('parameter_server', 1), ('parameter_server', 5), ('replicated', 2)]


def name_of(function):
    return f'{PATH}:{function}'


def plain(function):
    """Returns the variables before and after steps of plain TensorFlow 1 on one device."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        tf.train.get_or_create_global_step()
        tf1.mend()
        spec = getattr(whole_models, function)(tf.constant(IMAGES), tf.constant(LABELS), 'train')
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        variables = {each.op.name: each for each in tf.global_variables()}
        before = session.run(variables)
        for _ in range(STEPS):
            session.run(spec.train_op)
        return before, session.run(variables)


def trained_on_towers(function, mode, towers, before):
    """Returns the variables after the same steps on towers that share the batch."""
    with tf.Graph().as_default():
        network = own_towers(name_of(function))
        update = update_mode(mode, [f'/cpu:{k}' for k in range(min(towers, 2))])
        update = type(update)(update.devices.with_towers(towers))
        images, labels, shared = np.split(IMAGES, towers), np.split(LABELS, towers), {}

        def tower(k, scope):
            with at_position(0, tf.zeros([], tf.int64)):
                return network.train((tf.constant(images[k]), tf.constant(labels[k])), tf.float32, shared=shared)[0]
        step = update.build(tower, lambda: None, tf.train.get_or_create_global_step())
        with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
            initialise(session)
            for variable in tf.global_variables():
                if variable.op.name in before:
                    variable.load(before[variable.op.name], session)
            session.run(tf.local_variables_initializer())  # initialises the other copies
            for _ in range(STEPS):
                session.run([step.train_ops, step.scalars])
            for copies in update.copied():
                for one, *others in zip(*session.run([[each.read_value() for each in copy] for copy in copies])):
                    assert all(one.tobytes() == other.tobytes() for other in others)
            return session.run({each.op.name: each for each in tf.global_variables()})


@pytest.mark.parametrize('function', mostly_stress(TRAINED, *ALWAYS))
def test_towers_take_the_steps_of_plain_tensorflow_1(function):
    before, after = plain(function)
    assert any(np.abs(after[name] - value).max() > 1e-3 for name, value in before.items() if value.dtype == np.float32)
    for mode, towers in LAYOUTS:
        found = trained_on_towers(function, mode, towers, before)
        assert set(found) == set(after)
        for name, value in after.items():
            if towers == 1:
                assert found[name].tobytes() == value.tobytes(), (mode, name)
            else:
                np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=f'{mode}, {towers}, {name}')


@pytest.mark.parametrize('mode, towers', mostly_stress(LAYOUTS, ('replicated', 2)))
def test_add_moving_statistic_works_in_a_model_like_an_assignment(mode, towers):
    before, after = plain('with_a_statistic')
    found = trained_on_towers('with_a_statistic_of_this_package', mode, towers, before)
    for name, value in after.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5)
    assert np.abs(after['mean']).max() > 1e-3


@pytest.mark.parametrize('function, mode', mostly_stress(
    [*((function, 'replicated') for function in TRAINED + ['fed', 'one_draw']),
     *((ALWAYS[0], mode) for mode in ('parameter_server', 'local'))], (ALWAYS[0], 'replicated')))
def test_a_resumed_model_ends_with_the_same_bits_on_other_devices(function, mode, settings, tmp_path):
    def run(folder, **changes):
        train(settings(network=name_of(function), train_dir=str(tmp_path / folder), max_steps=6, save_steps=2,
                       num_towers=2, batch_size=4, variable_update=mode, **changes))
    run('whole', num_gpus=1)
    go_back(tmp_path / 'whole', 'resumed')
    run('resumed', num_gpus=2)
    assert_same_bits(last_variables(tmp_path / 'whole'), last_variables(tmp_path / 'resumed'))


@pytest.mark.stress
@pytest.mark.parametrize('function', [
    'momentum', 'averages_after_statistics_before', 'infers_with_averages', 'without_infer', 'of_tpu', 'fed'])
def test_a_model_is_evaluated_in_infer_mode(function, settings, tmp_path):
    train(settings(network=name_of(function), max_steps=3, num_towers=2, batch_size=4, eval_steps=2, keep_best=True))
    assert evaluated(tmp_path / 'train', tmp_path / 'eval')['examples'] == 200


@pytest.mark.parametrize('result, problem', [
    ('loss', 'the step function: it returns a tensor float32 ()'),
    ('loss, None', 'its train_op is None; return an operation'),
    ('tf.stack([loss, loss]), tf.no_op()', 'its loss is a tensor float32 (2,) (line ')])
def test_an_invalid_result_of_a_step_function_is_a_usage_error(result, problem):
    with tf.Graph().as_default(), pytest.raises(UsageError, match=re.escape(problem)):
        def step(batch):
            loss = tf.reduce_mean(tf.square(batch @ tf.get_variable('w', [3, 1])))
            return eval(result, dict(tf=tf, loss=loss))
        on_towers(step, [tf.ones([2, 3])] * 2, ['/cpu:0'])


def test_a_step_function_takes_tensors_only_from_its_batch():
    with tf.Graph().as_default(), pytest.raises(UsageError, match='outside the function; pass it in the batches'):
        rate = tf.placeholder(tf.float32, [])

        def step(batch):
            loss = tf.reduce_mean(tf.square(batch @ tf.get_variable('w', [3, 1]))) * rate
            return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
        on_towers(step, [tf.ones([2, 3])] * 2, ['/cpu:0'])


def test_a_global_step_of_another_kind_is_refused_with_a_remedy():
    with tf.Graph().as_default(), pytest.raises(UsageError, match='before tf.train.get_or_create_global_step'):
        tf.Variable(0, trainable=False, name='global_step')
        on_towers(lambda batch: None, [tf.ones([2, 3])] * 2, ['/cpu:0'])


def test_a_refusal_of_a_step_function_names_its_line():
    def step(batch):
        loss = tf.reduce_mean(tf.square(batch @ tf.get_variable('w', [3, 1])))
        return loss, tf.train.GradientDescentOptimizer(tf.reduce_max(batch)).minimize(
            loss, tf.train.get_global_step())
    with tf.Graph().as_default(), pytest.raises(UsageError, match=rf'line \d+ of {__file__}'):
        on_towers(step, [tf.ones([2, 3])] * 2, ['/cpu:0'])


@pytest.mark.parametrize('function', refused_models.REFUSED)
def test_models_without_a_right_answer_on_towers_are_refused_with_their_line(function):
    with pytest.raises(UsageError, match=re.escape(refused_models.REFUSED[function])) as refused:
        rehearsed(f'{ROOT}/tests/refused_models.py:{function}')
    lines, first = inspect.getsourcelines(getattr(refused_models, function))
    marked = [number for number, line in enumerate(lines, first) if line.endswith('# line\n')]
    for number in marked:
        assert f'line {number} of {ROOT}/tests/refused_models.py' in str(refused.value)


@pytest.mark.parametrize('function', refused_models.WARNED)
def test_random_numbers_do_not_hide_other_warnings(function):
    warnings = rehearsed(f'{ROOT}/tests/refused_models.py:{function}')
    assert any(refused_models.WARNED[function] in each for each in warnings), warnings


def test_the_variables_of_a_model_are_on_one_server():
    """An operation of the update, such as Adam's, changes a variable together with its slots."""
    chosen = dataclasses.replace(devices.choose(1, 'cpu').with_towers(1), servers=('/cpu:0', '/cpu:1'))
    network = own_towers(name_of('clipped_adam'))

    def tower(k, scope):
        with at_position(0, tf.zeros([], tf.int64)):
            return network.train((tf.constant(IMAGES), tf.constant(LABELS)), tf.float32)[0]
    ParameterServer(chosen).build(tower, lambda: None, tf.train.get_or_create_global_step())
    made = [each for each in tf.global_variables() if each is not tf.train.get_global_step()]
    assert any('Adam' in each.name for each in made)
    assert {each.device for each in made} == {'/device:CPU:0'}


@pytest.mark.stress
@pytest.mark.parametrize('function, mode, ps', [
    ('by_hand', 'parameter_server', 0), ('clipped_adam', 'parameter_server', 2), ('embedding', 'replicated', 0)])
def test_a_cluster_has_the_bits_of_one_process(function, mode, ps, data_dir, tmp_path):
    flags = dict(network=name_of(function), dataset='shapes', data_dir=data_dir, batch_size=4, max_steps=6,
                 variable_update=mode)
    train(train_settings(**flags, train_dir=str(tmp_path / 'alone'), num_gpus=2, tower_device='cpu'))
    with Tasks(2, ps, **flags, train_dir=str(tmp_path / 'cluster')) as tasks:
        ends = tasks.ends()
    assert {status for status, _ in ends.values()} == {0}, ends
    assert_same_bits(last_variables(tmp_path / 'cluster'), last_variables(tmp_path / 'alone'))


@pytest.mark.stress
def test_a_models_summaries_are_written_once_per_step(settings, tmp_path):
    for mode in ('parameter_server', 'replicated', 'async'):
        folder = str(tmp_path / mode)
        train(settings(network=name_of('clipped_adam'), train_dir=folder, num_gpus=2, max_steps=6, batch_size=4,
                       summary_steps=3, variable_update=mode))
        steps = [step for step, _ in scalars(folder, 'norm')]
        assert steps and (mode == 'async' or steps == [3, 6])
        assert not scalars(folder, 'details/learning_rate')
    train(settings(network=name_of('momentum'), max_steps=6, num_towers=2, batch_size=4, summary_steps=1))
    rates = [value for _, value in scalars(tmp_path / 'train', 'rate')]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.05, 0.05, 0.01])


@pytest.mark.parametrize('given, problem', [
    (dict(optimizer='adam'), '--optimizer=adam is for networks'), (dict(learning_rate=0.1), '--learning_rate=0.1 is'),
    (dict(preset='fast'), '--preset=fast is for networks'), (dict(freeze='k'), '--freeze=k is for networks'),
    (dict(schedule='cosine', epochs=1.0), '--schedule=cosine is'), (dict(clip_norm=1.0), '--clip_norm=1.0 is'),
    (dict(label_smoothing=0.1), '--label_smoothing=0.1 is'), (dict(warmup_epochs=1.0), '--warmup_epochs=1.0 is'),
    (dict(loss=f'{ROOT}/tests/losses.py:focal'), 'losses.py:focal is for networks'),
    (dict(class_weights='balanced'), '--class_weights=balanced is'),
    (dict(variable_update='mirrored'), 'use --variable_update=replicated'),
    (dict(precision='fp16'), 'use --precision=bf16, or scale the loss in the model')])
def test_flags_that_a_model_replaces_are_refused(given, problem, data_dir, tmp_path):
    with pytest.raises(UsageError, match=re.escape(problem)):
        train(train_settings(network=name_of('momentum'), dataset='shapes', data_dir=data_dir,
                             train_dir=str(tmp_path / 'train'), tower_device='cpu', **given))


def test_a_model_without_classes_is_evaluated_by_its_loss(settings, call, tmp_path, capsys):
    train(settings(network=name_of('autoencoder'), num_towers=2, batch_size=4, max_steps=20, eval_steps=10,
                   keep_best=True))
    found = evaluated(tmp_path / 'train', tmp_path / 'eval')
    assert found['examples'] == 200 and 0 < found['loss'] < 2 and 'accuracy' not in found
    printed = capsys.readouterr().out
    assert f"loss = {found['loss']:.5g}, error = {found['error']:.5g} (200 examples), step 20" in printed
    assert 'evaluations report only its loss' in printed
    points = dict(scalars(tmp_path / 'train', 'loss', EVALUATIONS))
    assert points[10] > points[20] == pytest.approx(found['loss'])
    of_api = cifar10.evaluate(train_dir=str(tmp_path / 'train'), eval_dir=str(tmp_path / 'api'), tower_device='cpu')
    assert of_api.figures == dict(loss=pytest.approx(found['loss']), error=pytest.approx(found['error']))
    assert of_api.examples == 200 and found['error'] == pytest.approx(found['loss'])
    assert of_api.accuracy is None and of_api.per_class == {}
    best = min(metrics.read(str(tmp_path / 'train'), metrics.EVAL), key=lambda record: record['loss'])
    assert f"step {best['step']}, loss {best['loss']:.5g}" in printed
    picture = tmp_path / 'picture.png'
    picture.write_bytes(encoded(np.zeros([40, 40, 3], np.uint8), 'PNG'))
    for use in (f'--image={picture}', f"--export_dir={tmp_path / 'exported'}", '--per_class'):
        status, error = call('cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", '--run_once', use,
                             '--tower_device=cpu', f"--eval_dir={tmp_path / 'eval'}")
        assert status == 2 and ('predictions' in error or 'predict classes' in error), error


def test_bf16_applies_to_convolutions_and_products():
    with tf.Graph().as_default() as graph:
        add_tower(own_towers(name_of('momentum')), tf.zeros([4, 24, 24, 3]), dtype=tf.bfloat16)
        found = {operation.get_attr('T') for operation in graph.get_operations() if operation.type in (
            'Conv2D', 'Conv2DBackpropFilter', 'MatMul')}
    assert found == {tf.bfloat16}


@pytest.mark.stress
def test_the_command_line_resumes_evaluates_classifies_with_and_exports_a_model(call, tmp_path):
    model_flag = f"--network={name_of('auxiliary_head')}", '--tower_device=cpu', '--num_towers=2', '--batch_size=4'
    for steps in (2, 4):
        assert call('multi_gpu_train.py', *model_flag, f'--max_steps={steps}') == (0, '')
    picture = tmp_path / 'picture.png'
    picture.write_bytes(encoded(np.zeros([40, 40, 3], np.uint8), 'PNG'))
    for use in ([], [f'--image={picture}'], [f"--export_dir={tmp_path / 'exported'}"]):
        status, error = call('cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", '--tower_device=cpu', *use)
        assert (status, error) == (0, '')


def test_side_effects_that_a_train_op_waits_for_happen_in_each_tower():
    trained_on_towers('with_effects', 'parameter_server', 5, {})
    assert len(sys.modules[f'own code in {PATH}'].SEEN) == 5 * STEPS


IN_VAIN = '''
from tests.whole_models import *
def mine(features, labels, mode):
    x = tf.layers.batch_normalization(features, training=mode == 'train')
    logits = network(x)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    tf.summary.scalar('accuracy', tf.metrics.accuracy(labels, tf.argmax(logits, 1))[1])
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.train.AdamOptimizer().minimize(loss, step_of()))
'''


def test_omitted_statistics_and_summaries_are_reported(own):
    found = ' '.join(rehearsed(own(IN_VAIN, 'mine')))
    assert 'make the train_op wait for tf.get_collection(tf.GraphKeys.UPDATE_OPS)' in found


def test_a_script_summarises_once_and_its_graph_is_written(tmp_path, capfd):
    def step(batch):
        loss = tf.reduce_mean(tf.square(batch['x'] @ tf.get_variable('w', [3, 1]))) * batch['scale']
        tf.summary.scalar('loss', loss)
        return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    with tf.Graph().as_default(), tf.Session() as session:
        train_op, _ = on_towers(step, [dict(scale=tf.constant(2.0), x=tf.ones([2, 3]))] * 3, ['/cpu:0'])
        summary = tf.summary.merge_all()
        session.run(tf.global_variables_initializer())
        session.run(tf.local_variables_initializer())
        found = tf.Summary.FromString(session.run([summary, train_op])[0])
        assert [value.tag for value in found.value] == ['loss']
        tf.train.Saver().save(session, str(tmp_path / 'model'))
    assert 'has no attribute' not in ''.join(capfd.readouterr())


@pytest.mark.parametrize('given, problem', [
    (dict(batches=[]), 'batches is empty; give a list with one batch per tower'),
    (dict(devices='/gpu:0'), "devices is str; give a list such as ['/gpu:0']"),
    (dict(variable_update='async'), "variable_update='async'; choose from: parameter_server, replicated")])
def test_invalid_arguments_are_a_usage_error(given, problem):
    with tf.Graph().as_default(), pytest.raises(UsageError, match=re.escape(problem)):
        on_towers(lambda batch: None, **{**dict(batches=[tf.ones([2, 3])], devices=['/cpu:0']), **given})
