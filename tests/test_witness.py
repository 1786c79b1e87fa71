"""The witness of a step finds what one device has computed wrongly, and changes nothing."""
import re

import numpy as np
import pytest

from cifar10.base.errors import RunError, UsageError
from cifar10.data import pipeline
from cifar10.parallel import update
from cifar10.run import metrics
from cifar10.run.names import step_of
from cifar10.training import trainer, witness
from tests.features import FEATURES, all_with, flags_of
from tests.helpers import ROOT, assert_same_bits, checkpoints, last_variables, mostly_stress, tf
from tests.test_replay import verified
from tests.test_trouble import form

MODES = ['parameter_server', 'replicated', 'local']


@pytest.fixture
def wrong(monkeypatch):
    """A function that makes a tower compute its first gradient wrongly; `change` gets it and the number of the call."""
    def make(tower, change):
        of_gradients(monkeypatch, change, tower)
    return make


def changed(tensor, change):
    """Returns a float32 tensor after `change`, which gets its value and how often it has been called."""
    calls = []

    def call(values):
        calls.append(1)
        return change(values, len(calls))
    return tf.ensure_shape(tf.numpy_function(call, [tensor], tf.float32), tensor.shape)


def assert_in_outputs(*lines):
    """Asserts that docs/outputs.md shows lines, but for what differs from run to run."""
    shown = set(map(form, (ROOT / 'docs' / 'outputs.md').read_text().splitlines()))
    assert not [line for line in map(form, lines) if line not in shown]


def flipped(when, bit=0):
    """Returns a change that flips a bit of the first element; `when` gets the number of the call."""
    def change(values, call):
        bits = values.copy().view(np.int32)
        if when(call):
            bits.flat[0] ^= 1 << bit
        return bits.view(np.float32)
    return change


@pytest.mark.parametrize('mode, num_gpus, when, said', [
    *((mode, 2, lambda call: True, '/cpu:0 and /cpu:1 always give different results for the same input')
      for mode in MODES),
    ('replicated', 2, lambda call: call % 2, '/cpu:1 gave two results for the same input'),
    ('replicated', 2, lambda call: call == 9, '/cpu:1 gave two results for the same input'),  # in step 8
    ('replicated', 1, lambda call: call % 2, '/cpu:0 gave two results for the same input')],
    ids=[*MODES, 'now and then', 'once', 'one device'])
def test_a_wrong_device_is_found_at_the_next_witness(mode, num_gpus, when, said, wrong, settings):
    wrong(num_gpus - 1, flipped(when))
    config = settings(**flags_of('linear', mode, 40, num_towers=num_gpus, num_gpus=num_gpus, witness_steps=4))
    with pytest.raises(RunError) as error:
        trainer.train(config)
    found = re.match(rf'step (\d+): the gradients of tower \d are not those of its witness: {said}', str(error.value))
    assert found, error.value
    if 'gave two results' in said:
        assert_in_outputs(f'multi_gpu_train.py: error: {error.value}')
    step = int(found[1])
    assert step in ((4,) if when(2) else (4, 8, 12))
    assert checkpoints(config.run.train_dir)[-1].endswith(f'-{(step - 1) // 2 * 2}')
    assert not [record for record in metrics.read(config.run.train_dir, metrics.TRAIN) if record['step'] >= step]


@pytest.mark.parametrize('feature, mode', all_with(MODES, [
    ('random numbers', 'parameter_server'), ('linear', 'local')]))
@pytest.mark.parametrize('num_towers', [2, pytest.param(4, marks=pytest.mark.stress)])
def test_a_sound_run_takes_the_same_steps_with_it(feature, mode, num_towers, settings, tmp_path):
    # Every sixth step has both a witness and a summary.
    runs = [settings(**flags_of(feature, mode, 14, num_towers, save_steps=7, summary_steps=2, witness_steps=every,
                                train_dir=str(tmp_path / str(every)))) for every in (0, 3)]
    for config in runs:
        trainer.train(config)
    assert_same_bits(*(last_variables(config.run.train_dir) for config in runs))


@pytest.mark.parametrize('num_gpus, when, said', [
    (2, lambda call: True, '/cpu:[01] and /cpu:[01] always give different results for the same input'),
    (1, lambda call: call % 2, '/cpu:0 gave two results for the same input')])
def test_where_towers_update_on_their_own_a_wrong_device_is_found_too(num_gpus, when, said, wrong, settings):
    wrong(num_gpus - 1, flipped(when))
    config = settings(**flags_of('linear', 'async', 400, num_towers=num_gpus, num_gpus=num_gpus, witness_steps=4))
    with pytest.raises(RunError, match=rf'the gradients of tower \d are not those of its witness: {said}'):
        trainer.train(config)


@pytest.mark.parametrize('feature', mostly_stress(list(FEATURES), 'linear', 'fast'))
def test_where_towers_update_on_their_own_a_sound_run_ends(feature, settings):
    config = settings(**flags_of(feature, 'async', 20, witness_steps=3))
    trainer.train(config)
    assert last_variables(config.run.train_dir)['global_step'] >= 20


def not_finite(*calls):
    """Returns a change for `wrong` that makes a gradient infinite in some calls."""
    return lambda values, call: values + np.float32(np.inf if call in calls else 0)


@pytest.mark.parametrize('mode', mostly_stress(MODES, 'replicated'))
def test_a_loss_that_is_finite_when_the_steps_are_taken_again_was_computed_wrongly(mode, wrong, settings, capsys):
    wrong(1, not_finite(7))
    config = settings(**flags_of('linear', mode, 40, save_steps=4, witness_steps=100))
    with pytest.raises(RunError, match=r'step \d+: the loss of tower [01] on /cpu:[01] was (nan|inf), and is '
                                       r'[\d.]+ when the steps after step 4 are taken again: ') as error:
        trainer.train(config)
    doubted, = [line for line in capsys.readouterr().out.splitlines() if line.startswith('doubted')]
    assert_in_outputs(doubted.replace(' inf;', ' nan;'), f'multi_gpu_train.py: error: {error.value}'.replace(
        ' was inf,', ' was nan,'))
    assert [step_of(prefix) for prefix in checkpoints(config.run.train_dir)] == [4]


@pytest.mark.parametrize('mode', mostly_stress(MODES, 'replicated'))
def test_a_loss_that_is_not_finite_again_is_believed(mode, wrong, settings, capsys):
    wrong(1, lambda values, call: values + np.float32(np.inf if call >= 7 else 0))
    config = settings(**flags_of('linear', mode, 40, save_steps=4, witness_steps=100))
    with pytest.raises(RunError, match=r'to see why: python -m cifar10 replay .*--step=\d+$'):
        trainer.train(config)
    assert 'again, so no passing error of a device is its cause' in capsys.readouterr().out


def test_a_loss_is_doubted_for_a_limited_time(wrong, settings, capsys, monkeypatch):
    monkeypatch.setattr(witness, '_DOUBT_SECS', 0)
    wrong(1, not_finite(7))
    with pytest.raises(RunError, match='the loss of tower [01] is (nan|inf); the newest checkpoint is '):
        trainer.train(settings(**flags_of('linear', 'replicated', 40, save_steps=4, witness_steps=100)))
    assert 'doubted    step 4 was reached in 0 s; the rest is not taken again' in capsys.readouterr().out


def test_before_the_first_checkpoint_a_loss_is_believed_at_once(wrong, settings, capsys):
    wrong(1, not_finite(2))
    with pytest.raises(RunError, match='the loss of tower 0 is nan; there is no checkpoint yet'):
        trainer.train(settings(**flags_of('linear', 'replicated', 40, save_steps=40, witness_steps=100)))
    assert 'doubted' not in capsys.readouterr().out


def of_gradients(monkeypatch, change, tower=1):
    dense = update.dense

    def of_tower(pairs):
        pairs = dense(pairs)
        if tf.get_default_graph().get_name_scope().startswith(f'tower_{tower}'):
            pairs[0] = changed(pairs[0][0], change), pairs[0][1]
        return pairs
    monkeypatch.setattr(update, 'dense', of_tower)


def of_batches(monkeypatch, change):
    batches = pipeline.Source.batches

    def of_tower_1(self, *arguments):
        next_batch, start_inputs = batches(self, *arguments)

        def spoilt(k):
            images, labels = next_batch(k)
            return changed(images, change) if k == 1 else images, labels
        return spoilt, start_inputs
    monkeypatch.setattr(pipeline.Source, 'batches', of_tower_1)


def of_means(monkeypatch, change):
    apply = update.UpdateMode.apply

    def of_first(self, given, counter):
        (mean, variable), *others = given.gradients
        return apply(self, given._replace(gradients=[(changed(mean, change), variable), *others]), counter)
    monkeypatch.setattr(update.UpdateMode, 'apply', of_first)


@pytest.mark.parametrize('plant, call_of_step_7, every', mostly_stress([
    # In step 5, tower 1 is also the witness of tower 0.
    (of_batches, 7, 1), (of_means, 7, 1), (of_gradients, 8, 5)], (of_batches, 7, 1)))
def test_what_no_check_finds_a_replay_of_the_steps_does(plant, call_of_step_7, every, settings, monkeypatch):
    config = settings(**flags_of('linear', 'parameter_server', 12, save_steps=4, learning_rate=0.01, log_frequency=1,
                                 witness_steps=every))
    with monkeypatch.context() as planted:
        plant(planted, flipped(lambda call: call == call_of_step_7, bit=22))
        trainer.train(config)
    assert verified(config.run.train_dir, 6).startswith('verified ')
    assert re.match(r'differs    step [78]: loss \S+ was recorded, \S+ came out; .* or the hardware makes mistakes',
                    verified(config.run.train_dir, 8))


def test_it_is_refused_where_towers_cannot_compute_twice(settings):
    with pytest.raises(UsageError, match='--witness_steps: towers of --variable_update=mirrored cannot compute twice'):
        trainer.train(settings(variable_update='mirrored', witness_steps=5))
