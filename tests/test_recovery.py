"""A device is lost at any use of the session: the run recovers and ends with the bits of an unbroken one.

TensorFlow's own errors are raised where the loop uses a real session, before or after the call does its work.
"""
import threading

import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.errors import RunError
from cifar10.parallel import stepper
from cifar10.run import metrics
from cifar10.training import trainer
from tests.helpers import assert_same_bits, last_variables, patient

STEPS = 6


class Losses:
    """Makes the sessions of a run lose a device at use number `at`, counted from 0.

    Attributes:
      uses: the uses of sessions so far: 'make', 'run' and 'close'.
    """

    def __init__(self, at=None, error=tf.errors.UnavailableError, work_is_done=False):
        self.uses = []
        self._at = at if isinstance(at, range) else [at]
        self._error = error
        self._work_is_done = work_is_done

    def use(self, what, work):
        """Does the work, or loses a device before or after it."""
        lost = len(self.uses) in self._at
        self.uses.append(what)
        if lost and not self._work_is_done:
            raise self._error(None, None, f'lost at {what}')
        result = work()
        if lost:
            raise self._error(None, None, f'lost at {what}')
        return result

    def install(self, monkeypatch):
        """Counts the sessions of finalised graphs, which only the training loop has."""
        losses = self

        class Session(tf.Session):
            def __init__(self, *arguments, **options):
                make = super().__init__
                self._session = None  # the destructor reads it
                if tf.get_default_graph().finalized:
                    losses.use('make', lambda: make(*arguments, **options))
                else:
                    make(*arguments, **options)

            def _do_call(self, *arguments):  # called by `run` and by callables of `make_callable`
                call = super()._do_call
                return losses.use('run', lambda: call(*arguments)) if self.graph.finalized else call(*arguments)

            def close(self):
                close = super().close
                if self.graph.finalized:
                    losses.use('close', close)
                else:
                    close()
        monkeypatch.setattr(tf, 'Session', Session)


@pytest.fixture
def run(settings, tmp_path, monkeypatch):
    """A function that trains under Losses, in its own directory, and returns (its settings, the Losses)."""
    def train(name, flags=None, **loss):
        config = settings(**{**dict(train_dir=str(tmp_path / name), max_steps=STEPS, save_steps=2, eval_steps=6,
                                    log_frequency=1, summary_steps=3), **(flags or {})})
        losses = Losses(**loss)
        with monkeypatch.context() as patch:
            losses.install(patch)
            trainer.train(config)
        return config, losses
    return train


def test_a_run_that_loses_a_device_ends_with_the_bits_of_an_unbroken_one(run, capsys):
    whole, losses = run('whole')
    uses = losses.uses
    assert uses[0] == 'make' and uses[-1] == 'close' and uses.count('run') > 3 * STEPS
    lines = capsys.readouterr().out.splitlines()
    broken, _ = run('broken', at=6)  # every use: below
    assert_same_bits(last_variables(broken.run.train_dir), last_variables(whole.run.train_dir))
    for kind in (metrics.TRAIN, metrics.EVAL, metrics.CHECKPOINT):
        one, other = ([(record['step'], record.get('loss'), record.get('correct'), record.get('sha256'))
                       for record in metrics.read(config.run.train_dir, kind)] for config in (broken, whole))
        assert one == other, kind
    output = capsys.readouterr().out.splitlines()
    assert output[-1] == lines[-1].replace('whole', 'broken')
    assert [line for line in output if line.startswith(('recovering', 'resumed'))] == [
        f'recovering lost at {uses[6]}; making a new session', f'resumed    at step 0 of {STEPS}']


@pytest.mark.stress
@pytest.mark.parametrize('error, work_is_done', [(tf.errors.AbortedError, False), (tf.errors.UnavailableError, True)])
def test_a_run_recovers_from_a_loss_at_every_use(run, error, work_is_done):
    whole, losses = run('whole')
    for at in range(len(losses.uses)):
        broken, _ = run(str(at), at=at, error=error, work_is_done=work_is_done)
        assert_same_bits(last_variables(broken.run.train_dir), last_variables(whole.run.train_dir))


@pytest.mark.stress
def test_repeated_losses_of_a_device_end_the_run(run, capsys):
    with pytest.raises(RunError, match=r'lost at make; the newest checkpoint is .*model.ckpt-4$'):
        run('again', at=range(20, 10 ** 6))
    assert capsys.readouterr().out.count('recovering') == 20


def test_other_errors_end_the_run(run):
    with pytest.raises(RunError, match='lost at run'):
        run('run', at=9, error=tf.errors.InternalError)


@pytest.mark.stress
def test_a_thread_that_hangs_on_a_lost_device_does_not_end_the_recovered_run(settings, monkeypatch):
    released = threading.Event()
    hanging, sessions, later_steps = [], [], []

    class Session(tf.Session):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            if self.graph.finalized:
                sessions.append(self)

        def _do_call(self, *arguments):  # called by `run` and by callables of `make_callable`
            is_step = self in sessions and threading.current_thread() is not threading.main_thread()
            if is_step and len(sessions) == 1:
                if hanging:
                    raise tf.errors.UnavailableError(None, None, 'lost')
                hanging.append(threading.current_thread())
                released.wait(patient(60))
            elif is_step:
                later_steps.append(arguments)
                if len(later_steps) == 2:
                    released.set()  # by now the session of that thread is closed
                    hanging[0].join(patient(60))
            return super()._do_call(*arguments)

    monkeypatch.setattr(tf, 'Session', Session)
    monkeypatch.setattr(stepper, '_GRACE_SECS', 0.1)
    trainer.train(settings(variable_update='async', num_gpus=2, max_steps=20))
    assert len(sessions) == 2 and not hanging[0].is_alive()
