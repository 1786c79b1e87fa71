"""The witness of a step finds what one device has computed wrongly, and changes nothing."""
import re

import numpy as np
import pytest

from cifar10.base.errors import RunError, UsageError
from cifar10.parallel import update
from cifar10.run import metrics
from cifar10.training import trainer
from tests.features import FEATURES, flags_of
from tests.helpers import assert_same_bits, checkpoints, last_variables, mostly_stress, tf

MODES = ['parameter_server', 'replicated', 'local']


@pytest.fixture
def wrong(monkeypatch):
    """A function that makes a tower flip a bit of its first gradient; `when` is given the number of the call."""
    def make(tower, when):
        end, calls = update.Turns.end, []

        def flip(values):
            calls.append(1)
            bits = values.view(np.int32)
            if when(len(calls)):
                bits.flat[0] ^= 1
            return bits.view(np.float32)

        def changed(turns, k, gradients):
            if k == tower:
                gradient, variable = gradients[0]
                flipped = tf.numpy_function(flip, [gradient], tf.float32)
                gradients[0] = tf.ensure_shape(flipped, gradient.shape), variable
            end(turns, k, gradients)
        monkeypatch.setattr(update.Turns, 'end', changed)
    return make


@pytest.mark.parametrize('mode, num_gpus, when, said', [
    *((mode, 2, lambda call: True, '/cpu:0 and /cpu:1 always give different results for the same input')
      for mode in MODES),
    ('replicated', 2, lambda call: call % 2, '/cpu:1 gave two results for the same input'),
    ('replicated', 1, lambda call: call % 2, '/cpu:0 gave two results for the same input')],
    ids=[*MODES, 'now and then', 'one device'])
def test_a_wrong_device_is_found_at_the_next_witness(mode, num_gpus, when, said, wrong, settings):
    wrong(num_gpus - 1, when)
    config = settings(**flags_of('linear', mode, 40, num_towers=num_gpus, num_gpus=num_gpus, witness_steps=4))
    with pytest.raises(RunError) as error:
        trainer.train(config)
    found = re.match(rf'step (\d+): the gradients of tower \d are not those of its witness: {said}', str(error.value))
    assert found, error.value
    step = int(found[1])
    assert step in ((4,) if when(2) else (4, 8, 12))
    assert checkpoints(config.run.train_dir)[-1].endswith(f'-{(step - 1) // 2 * 2}')
    assert not [record for record in metrics.read(config.run.train_dir, metrics.TRAIN) if record['step'] >= step]


@pytest.mark.parametrize('feature', mostly_stress(list(FEATURES), 'linear', 'random numbers'))
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('num_towers', [2, pytest.param(4, marks=pytest.mark.stress)])
def test_a_sound_run_takes_the_same_steps_with_it(feature, mode, num_towers, settings, tmp_path):
    # Every sixth step has both a witness and a summary.
    runs = [settings(**flags_of(feature, mode, 14, num_towers, save_steps=7, summary_steps=2, witness_steps=every,
                                train_dir=str(tmp_path / str(every)))) for every in (0, 3)]
    for config in runs:
        trainer.train(config)
    assert_same_bits(*(last_variables(config.run.train_dir) for config in runs))


@pytest.mark.parametrize('mode', ['async', 'mirrored'])
def test_it_is_refused_where_towers_cannot_compute_twice(mode, settings):
    with pytest.raises(UsageError, match=f'--witness_steps: towers of --variable_update={mode} cannot compute twice'):
        trainer.train(settings(variable_update=mode, witness_steps=5))
