"""Wrong results of a run are detected before they are saved."""

import numpy as np
import pytest

from cifar10.base.errors import RunError
from cifar10.data import datasets
from cifar10.parallel import update
from cifar10.parallel.devices import choose
from cifar10.run import metrics
from cifar10.run.folder import step_of
from cifar10.training import trainer
from cifar10.training.run import Run
from cifar10.training.soundness import Soundness
from tests.features import flags_of
from tests.helpers import (
    checkpoints,
    mostly_stress,
    plan_of,
    rewrite,
    tf,
    update_mode,
    variables,
)

COPIED = ['replicated', 'local', 'mirrored']


@pytest.fixture
def opened(settings, graph):
    """A function that opens a run and returns (it, its Soundness, the variable to corrupt, a function that does it).

    `spoil` is a part of the variable's name; the last copy of the variable is corrupted.
    """
    del graph
    contexts = []

    def make(mode, spoil=None, **changes):
        given = settings(variable_update=mode, num_gpus=2, tower_device='cpu', optimizer='momentum', save_steps=8,
                         max_steps=100, batch_size=4, **changes)
        devices = choose(2, 'cpu')
        steps = [2] * (mode == 'local')
        run = Run(plan_of(given, datasets.find(given.data).images(), devices, update_mode(mode, devices, *steps)))
        soundness = Soundness(run)
        variable = spoiling = None
        if spoil:
            with run.adding():
                pairs = [pair for copies in run.plan.mode.copied() for pair in zip(copies[0], copies[-1])
                         ] if mode in COPIED else []
                pairs += [(each, each) for each in tf.global_variables()]
                variable, copy = next(pair for pair in pairs if spoil in pair[0].op.name)
                spoiling = spoilt(copy)
        contexts.append(run.opened())
        contexts[-1].__enter__()
        soundness.begin()
        return run, soundness, variable, lambda: run.session.run(spoiling)
    yield make
    for context in contexts:
        context.__exit__(None, None, None)


def spoilt(variable):
    """Returns an operation that flips the lowest bit of a variable's first element."""
    bits = tf.int32 if variable.dtype.base_dtype == tf.float32 else variable.dtype.base_dtype
    value = tf.reshape(variable.read_value(), [-1])
    flipped = tf.bitwise.bitwise_xor(tf.bitcast(value[:1], bits), tf.constant([1], bits))
    changed = tf.concat([tf.bitcast(flipped, value.dtype), value[1:]], 0)
    return variable.assign(tf.reshape(changed, variable.shape), read_value=False)


@pytest.mark.parametrize('mode, kind', mostly_stress(
    [*((mode, kind) for mode in COPIED for kind in ('weights', 'Momentum')), ('local', 'LocalVelocity')],
    ('replicated', 'Momentum')))
def test_a_bit_flipped_in_one_copy_is_detected_at_the_next_save(mode, kind, opened):
    run, soundness, primary, spoil = opened(mode, kind)

    def steps():
        for _ in range(8):
            run.take()
        if run.averages_after(run.step):
            run.average()
    steps()
    soundness.check()
    steps()
    spoil()
    with pytest.raises(RunError, match=rf'step 16: the copy of {primary.op.name} on .* '
                                       r'since step 8; .* start again to continue'):
        soundness.check()


@pytest.mark.parametrize('mode', mostly_stress(['parameter_server', *COPIED], 'parameter_server'))
def test_a_wrong_count_of_examples_is_detected(mode, opened):
    run, soundness, _, spoil = opened(mode, 'examples_seen')
    for _ in range(8):
        run.take()
    run.average()
    spoil()
    with pytest.raises(RunError, match='step 8: 8 steps counted 6[35] examples instead of 64 because a device'):
        soundness.check()


@pytest.fixture
def flipped_mean(monkeypatch):
    """Flips a bit of the seventh mean gradient, on the second device if there are copies; returns the list of calls."""
    apply, calls = update.UpdateMode.apply, []

    def flip(values):
        calls.append(1)
        bits = values.copy().view(np.int32)
        bits.flat[0] ^= (len(calls) == 7) << 20
        return bits.view(np.float32)

    def of_one_device(self, given, counter):
        if given.device == '/cpu:1' or not self.has_copies:
            (mean, variable), *others = given.gradients
            flipped = tf.ensure_shape(tf.numpy_function(flip, [mean], tf.float32), mean.shape)
            given = given._replace(gradients=[(flipped, variable), *others])
        return apply(self, given, counter)
    monkeypatch.setattr(update.UpdateMode, 'apply', of_one_device)
    return calls


def test_wrong_variables_are_neither_evaluated_nor_kept_as_the_best(settings, flipped_mean):
    config = settings(**flags_of('linear', 'replicated', 12, learning_rate=0.01, save_steps=12, eval_steps=4,
                                 keep_best=True))
    with pytest.raises(RunError, match=r'step 8: the copy of .* on /cpu:1 has differed .* since step 4'):
        trainer.train(config)
    assert flipped_mean and [record['step'] for record in metrics.read(config.run.train_dir, metrics.EVAL)] == [4]
    assert [step_of(prefix) for prefix in checkpoints(config.run.train_dir)] == [4]


def test_a_bit_flipped_while_writing_is_detected_before_the_checkpoint_is_named(settings, monkeypatch):
    save = tf.train.Saver.save

    def spoiling(self, session, prefix, **options):
        path = save(self, session, prefix, **options)
        if prefix.endswith('-8') and 'write_state' in options:  # the checksum in the file is right
            weights = variables(path)['linear/weights']
            weights.view(np.int32).flat[0] ^= 1
            rewrite(path, **{'linear/weights': weights})
        return path
    monkeypatch.setattr(tf.train.Saver, 'save', spoiling)
    config = settings(**flags_of('linear', 'parameter_server', 12, save_steps=4))
    with pytest.raises(RunError, match='step 8: the checkpoint cannot be written .the written file differs'):
        trainer.train(config)
    assert [step_of(prefix) for prefix in checkpoints(config.run.train_dir)] == [4]
