"""Asynchronous updates: one copy of the variables; each tower applies its gradients as soon as it has them.

Each tower runs in a thread of its own (`AsyncWorkers`) and waits for no other. Its gradients may
therefore be stale: computed from variables that other towers have changed since.
"""
import contextlib
import threading
import time
from collections.abc import Iterator, Sequence

import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.graphs import LOST
from cifar10.parallel.parameter_server import ParameterServer
from cifar10.parallel.update import Update

_GRACE_SECS = 120  # in which a thread ends its step after an error; one that hangs on a lost device is left behind


class Asynchronous(ParameterServer):
    """Like ParameterServer, but with a train operation for each tower; each run of one is an update."""
    synchronous = False
    one_tower_per_device = True

    def build(self, tower_fn, make_optimizer, global_step, **options):
        with tf.device('/cpu:0'), tf.name_scope('report'):
            self._steps_at_read = [global_step.read_value() for _ in self.devices.tower_devices]
            self._updating = tf.CriticalSection(name='updating')
        step = super().build(tower_fn, make_optimizer, global_step, **options)
        with tf.device('/cpu:0'), tf.name_scope('report'):
            towers = [dict(scalars) for scalars in step.scalars]
            for scalars, seconds in zip(towers, step.seconds):
                scalars['waited'], scalars['seconds'] = tf.unstack(seconds)
            records = [_record(k, scalars, fallback=towers[0]) for k, scalars in enumerate(towers)]
            record_ops, last_scalars = zip(*records)
            towers[1:] = last_scalars[1:]  # the thread that reports runs tower 0 itself
            seconds = [tf.stack([scalars.pop('waited'), scalars.pop('seconds')]) for scalars in towers if step.seconds]
        return step._replace(
            scalars=towers, seconds=seconds,
            train_ops=[tf.group(*operations) for operations in zip(step.train_ops, record_ops)])

    @contextlib.contextmanager
    def tower_variables(self, k):
        # The step is read before any variable, so that staleness counts every update since.
        with tf.control_dependencies([self._steps_at_read[k]]), super().tower_variables(k):
            yield

    def reduce(self, towers):
        # One tower's gradients are their own mean. They are averaged all the same, so that a change to the mean
        # (clipping, for example) reaches every mode that has one copy of the variables.
        with tf.device('/cpu:0'):
            return [Update(self.average([tower.gradients]), tower.statistics, [tower], '/cpu:0') for tower in towers]

    def apply(self, update, counter):
        tower, = update.towers

        def measure_and_apply():
            staleness = tf.cast(counter.read_value() - self._steps_at_read[tower.k], tf.float32)
            with tf.control_dependencies([staleness]):
                applied = super(Asynchronous, self).apply(update, counter)
            with tf.control_dependencies([applied]):
                return tf.identity(staleness)

        # One update at a time: some optimizers read, compute and assign, and would overwrite an update that
        # came in between. A tower enters only when it has its gradients, so towers still compute in parallel.
        tower.scalars['staleness'] = self._updating.execute(measure_and_apply)
        return tower.scalars['staleness'].op


def _record(k, scalars, fallback):
    """Records a tower's scalars in a variable, for the thread that reports: it must not run the tower itself.

    Returns:
      (the operation that records the scalars, dict of those recorded last, or of the `fallback`'s before any was).
    """
    # All scalars are in one variable, so that a read never mixes two steps. Its last element becomes 1 with
    # the first record.
    record = tf.get_variable(f'last_of_tower_{k}', [len(scalars) + 1], tf.float32, tf.zeros_initializer(),
                             trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    record_op = record.assign(tf.stack([*scalars.values(), 1.0]), read_value=False)
    *values, recorded = tf.unstack(record.read_value())
    last = {name: tf.where(recorded > 0, value, fallback[name]) for name, value in zip(scalars, values)}
    return record_op, last


class AsyncWorkers:
    """Runs train operations over and over, each in a thread of its own. Without operations it does nothing.

    It is for one session: a thread that hangs on a lost device may end long after the next session was made, and must
    not end that one.
    """

    def __init__(self, train_ops: Sequence[tf.Operation]):
        self._train_ops = train_ops
        self._locks = [threading.Lock() for _ in train_ops]  # each is held while its thread is within a step
        self._may_step = threading.Event()
        self._may_step.set()
        self._ended = False
        self._error = None

    @contextlib.contextmanager
    def stepping(self, session: tf.Session) -> Iterator[None]:
        """Context in which the threads take steps. At its end each thread ends the step that it is in.

        Raises:
          Exception: what has ended a thread.
        """
        threads = [threading.Thread(target=self._step, args=(session, *each), daemon=True)
                   for each in zip(range(1, len(self._train_ops) + 1), self._train_ops, self._locks)]
        for thread in threads:
            thread.start()
        try:
            yield
        except Exception as error:
            self._end(threads, _GRACE_SECS)
            # From the loss of a device the loop recovers, but it may make other threads raise anything.
            if isinstance(self._error, LOST) and not isinstance(error, LOST):
                raise self._error from error
            raise
        self._end(threads)
        self.raise_error()

    def _end(self, threads, seconds=None):
        self._ended = True
        begin = time.monotonic()
        for thread in threads:
            thread.join(None if seconds is None else max(begin + seconds - time.monotonic(), 0))

    def _step(self, session, tower, train_op, lock):
        patience = OF_FIRST_STEP
        try:
            while not self._ended and self._error is None:
                self._may_step.wait()
                with lock, doing(f'in a step of tower {tower}', patience):
                    session.run(train_op)
                patience = 1
        except tf.errors.OutOfRangeError:
            pass  # the last batch was taken
        except Exception as error:  # of any type: the main thread raises it
            self._error = error

    def raise_error(self) -> None:
        """Raises what has ended a thread, if anything but the end of the batches has."""
        if self._error is not None:
            raise self._error

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Context in which no thread is within a step, so that all variables read or saved in it agree."""
        self._may_step.clear()
        try:
            with contextlib.ExitStack() as held:
                for lock in self._locks:
                    held.enter_context(lock)
                yield
        finally:
            self._may_step.set()
