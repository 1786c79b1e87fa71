"""Signals: runs, users' code and finished programs return them to their previous handlers."""
import contextlib
import os
import signal
import threading

import pytest

import cifar10
from cifar10 import UsageError
from cifar10.base import signals
from cifar10.programs import program
from tests.helpers import last_variables, mostly_stress, patient, python, read_until, start_script

EVERY = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2


@pytest.fixture
def small(data_dir, tmp_path):
    """The settings of a small run that records each step."""
    return dict(dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', network='linear', batch_size=8,
                tower_device='cpu', log_frequency=1, summary_steps=0, max_steps=8)


def dispositions():
    """Returns the receivers of this process's signals: the handlers, and the wake-up descriptor."""
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    return [signal.getsignal(number) for number in signal.valid_signals()], descriptor


def sending(number, step):
    """Returns an on_record function that sends a signal to this process after a step."""
    def on_record(record):
        if (record['kind'], record['step']) == ('train', step):
            os.kill(os.getpid(), number)
    return on_record


@pytest.fixture
def handled():
    """The signals received by this process, the caller of runs, which handles all signals that end a program."""
    received = []
    before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in EVERY}
    yield received
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize('in_context, numbers', mostly_stress(
    [(True, [signal.SIGUSR1]), (False, EVERY)], (True, [signal.SIGUSR1])))
def test_between_runs_signals_reach_the_caller(in_context, numbers, small, handled):
    def say(line):
        if line.startswith('recipe'):  # there is nothing to save yet
            os.kill(os.getpid(), number)
    before, step = dispositions(), 0
    termination = cifar10.Termination()
    small['max_steps'] = 50  # a signal may arrive some steps late
    with termination if in_context else contextlib.nullcontext():
        for number in numbers:
            result = cifar10.train(**small, say=say, on_record=sending(number, step + 1), termination=termination)
            assert not result.finished and step < result.step < small['max_steps']
            step = result.step
            assert last_variables(small['train_dir'])['global_step'] == result.step
            assert (termination.requested, termination.was_requested) == (None, number.name)
            assert dispositions() == before and handled == [number]
            os.kill(os.getpid(), number)
            assert handled == [number, number]
            handled.clear()
        assert cifar10.train(**small, termination=termination).finished and termination.was_requested is None
        assert dispositions() == before


def test_signals_are_restored_after_a_failed_run(small, handled):
    before, termination = dispositions(), cifar10.Termination()

    def fail(record):
        if record['kind'] == 'train':
            termination.requested = 'good enough'
            raise ValueError
    with pytest.raises(ValueError):
        cifar10.train(**small, on_record=fail, termination=termination)
    assert dispositions() == before
    assert cifar10.train(**small, termination=termination).finished and dispositions() == before


def test_a_callback_can_end_a_run_and_harmless_signals_reach_the_caller(small):
    termination, seen = cifar10.Termination(), []

    def on_record(record):
        os.kill(os.getpid(), signal.SIGALRM)
        if (record['kind'], record['step']) == ('train', 3):
            termination.requested = 'good enough'
    before = signal.signal(signal.SIGALRM, lambda *event: seen.append('SIGALRM'))
    try:
        result = cifar10.train(**small, on_record=on_record, termination=termination)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert (result.step, result.finished, result.ended_by, termination.was_requested) == (3, False, None, 'good enough')
    assert result.checkpoint.endswith('model.ckpt-3') and len(seen) > 2


def test_a_termination_outside_the_main_thread_is_refused(small):
    def train():
        with pytest.raises(UsageError, match='main thread'):
            cifar10.train(**small, termination=cifar10.Termination())
        refused.append(True)
    refused = []
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert refused and not os.path.exists(small['train_dir'])


def test_signals_ignored_at_the_start_stay_ignored():
    for ignored in EVERY:
        before = signal.signal(ignored, signal.SIG_IGN)
        try:
            with signals.caught(print):
                assert [number for number in EVERY if signal.getsignal(number) == signal.SIG_IGN] == [ignored]
        finally:
            signal.signal(ignored, before)


# A network whose file and function install their own signal handlers.
TAKES_SIGNALS = """
import signal
import tensorflow.compat.v1 as tf
EVERY = signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2
for number in EVERY:
    signal.signal(number, signal.SIG_DFL)
def network(images, num_classes, training):
    for number in EVERY:
        signal.signal(number, signal.SIG_IGN)
    x = tf.reshape(images, [-1, 24 * 24 * 3])
    return x @ tf.get_variable('weights', [24 * 24 * 3, num_classes])
"""


def test_users_code_changes_no_signal_handlers(own, small, handled):
    small['network'] = own(TAKES_SIGNALS)
    before = dispositions()

    def on_record(record):
        within.append({signal.getsignal(number) for number in EVERY})
        sending(signal.SIGTERM, 2)(record)
    within = []
    result = cifar10.train(**small, termination=cifar10.Termination(), on_record=on_record)
    assert not result.finished and dispositions() == before and handled == []
    assert all(len(handlers) == 1 and callable(*handlers) for handlers in within)


# A process with its own handlers, forked while signals are caught, like a pool's worker in a user's file.
FORKS = """
import os, signal, sys, time
from cifar10.base import signals
received = []
reading, writing = os.pipe()
with signals.caught(received.append):
    child = os.fork()
    if not child:
        os.write(writing, b'ready')
        time.sleep(1000)
    os.read(reading, 5)
    os.kill(child, int(sys.argv[1]))
    _, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status), status
print(os.WTERMSIG(status), received)
"""


def test_a_signal_to_a_forked_process_does_not_reach_its_parent():
    result = python('-c', FORKS, str(int(signal.SIGTERM)))
    assert result.stdout == f'{signal.SIGTERM:d} []\n', result


# A file with a non-daemon thread that never ends.
STARTS_A_THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(100000,), name='reader of a queue').start()
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.reshape(images, [-1, 24 * 24 * 3])
    return x @ tf.get_variable('weights', [24 * 24 * 3, num_classes])
"""


@pytest.mark.parametrize('changes, number, status', mostly_stress([
    ({}, signal.SIGTERM, program.FINISHED),
    (dict(num_gpus=100, tower_device='gpu'), signal.SIGUSR1, UsageError.status)],
    ({}, signal.SIGTERM, program.FINISHED)))
def test_a_program_that_waits_for_a_thread_names_it_and_ends_on_a_signal(changes, number, status, own, small):
    flags = dict(small, network=own(STARTS_A_THREAD), **changes)
    process = start_script('multi_gpu_train.py', **flags)
    try:
        assert read_until(process, 'waiting ').count('reader of a queue') == 1
        process.send_signal(number)
        output, _ = process.communicate(timeout=patient(20))
        assert process.returncode == status and 'Traceback' not in output
    finally:
        process.kill()
