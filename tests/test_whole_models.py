"""Whole models with their own loss and train_op: N towers take the steps of plain TensorFlow 1 on the whole batch."""

import numpy as np
import pytest

from cifar10.own import model, tf1
from cifar10.parallel.towers import tower_loss
from tests import whole_models
from tests.helpers import (
    ROOT,
    assert_same_bits,
    evaluated,
    initialise,
    last_variables,
    mostly_stress,
    tf,
    train,
    update_mode,
)
from tests.whole_models import IMAGES, LABELS, TRAINED

PATH = f'{ROOT}/tests/whole_models.py'
STEPS = 6
# Statistics and an average, a scalar of the towers, branches, and a gradient of a gradient.
ALWAYS = 'averages_after_statistics_before', 'rate_follows_loss', 'accumulating', 'gradient_penalty'
LAYOUTS = [(mode, towers) for mode in ('parameter_server', 'replicated') for towers in (1, 2, 5)]


def name_of(function):
    return f'{PATH}:{function}'


def plain(function):
    """Returns the variables before and after steps of plain TensorFlow 1 on one device."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        tf1.mend()
        spec = getattr(whole_models, function)(tf.constant(IMAGES), tf.constant(LABELS), 'train')
        session.run(tf.global_variables_initializer())
        variables = {each.op.name: each for each in tf.global_variables()}
        before = session.run(variables)
        for _ in range(STEPS):
            session.run(spec.train_op)
        return before, session.run(variables)


def on_towers(function, mode, towers, before):
    """Returns the variables after the same steps on towers that share the batch."""
    with tf.Graph().as_default():
        network = model.network(name_of(function))
        update = update_mode(mode, [f'/cpu:{k}' for k in range(min(towers, 2))])
        update = type(update)(update.devices.with_towers(towers))
        images, labels = np.split(IMAGES, towers), np.split(LABELS, towers)

        def tower(k, scope):
            loss, found = tower_loss(scope, lambda: network.add_loss(tf.constant(images[k]), tf.constant(labels[k])))
            return dict(total_loss=loss, **found)
        step = update.build(tower, network.optimizer, tf.train.get_or_create_global_step())
        with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
            initialise(session)
            for variable in tf.global_variables():
                if variable.op.name in before:
                    variable.load(before[variable.op.name], session)
            session.run(tf.local_variables_initializer())  # the other copies follow
            for _ in range(STEPS):
                session.run(step.train_ops)
            for copies in update.copied():
                for one, *others in zip(*session.run([[each.read_value() for each in copy] for copy in copies])):
                    assert all(one.tobytes() == other.tobytes() for other in others)
            return session.run({each.op.name: each for each in tf.global_variables()})


@pytest.mark.parametrize('function', mostly_stress(TRAINED, *ALWAYS))
def test_towers_take_the_steps_of_plain_tensorflow_1(function):
    before, after = plain(function)
    assert any(np.abs(after[name] - value).max() > 1e-3 for name, value in before.items() if value.dtype == np.float32)
    for mode, towers in LAYOUTS:
        found = on_towers(function, mode, towers, before)
        assert {name for name in found if not name.startswith('mean_over_towers/')} == set(after)
        for name, value in after.items():
            if towers == 1:
                assert found[name].tobytes() == value.tobytes(), (mode, name)
            else:
                np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=f'{mode}, {towers}, {name}')


@pytest.mark.parametrize('function', mostly_stress(TRAINED + ['fed', 'one_draw'], 'averages_after_statistics_before'))
@pytest.mark.parametrize('mode', mostly_stress(['parameter_server', 'replicated', 'local'], 'replicated'))
def test_a_model_that_was_stopped_ends_with_the_same_bits_on_other_devices(function, mode, settings, tmp_path):
    def run(folder, steps, **changes):
        train(settings(network=name_of(function), train_dir=str(tmp_path / folder), max_steps=steps, num_towers=4,
                       batch_size=4, variable_update=mode, **changes))
    run('whole', 6, num_gpus=2)
    run('parts', 2, num_gpus=1)
    run('parts', 6, num_gpus=4)
    assert_same_bits(last_variables(tmp_path / 'whole'), last_variables(tmp_path / 'parts'))


@pytest.mark.parametrize('function', mostly_stress(TRAINED + ['fed', 'one_draw'], 'distilled'))
def test_a_model_is_evaluated_as_it_infers(function, settings, tmp_path):
    train(settings(network=name_of(function), max_steps=3, num_towers=2, batch_size=4, eval_steps=2, keep_best=True))
    assert evaluated(tmp_path / 'train', tmp_path / 'eval')['examples'] == 2000
