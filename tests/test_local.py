"""The update mode `local`: copies that drift, averages of the copies, and runs that are saved after averages."""
import contextlib
import io
import re
import signal

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGED_AT, LOSS_SCALE, START
from cifar10.data import datasets
from cifar10.model import averages, precision
from cifar10.parallel.devices import Devices, choose
from cifar10.run.folder import step_of
from cifar10.settings.training import train_settings
from cifar10.training.run import Run
from tests.helpers import (
    assert_same_bits,
    checkpoints,
    initialise,
    last_variables,
    mostly_stress,
    patient,
    plan_of,
    read_until,
    start_script,
    stepping,
    train,
    update_mode,
    values_by_name,
    variables,
)

RATE, MOMENTUM = 0.1, 0.9
FEEDS = [1.0, -2.0, 0.5]  # one for each tower


def tower_fn(k, scope):
    a = tf.get_variable('a', [2], initializer=tf.constant_initializer([2.0, 5.0]))
    x = tf.placeholder_with_default(tf.constant(FEEDS[k]), [])
    return dict(total_loss=x * a[0] * a[1])


def three_towers():
    """Returns the Devices of three towers, two of which share a device."""
    return Devices((('/cpu:0',), ('/cpu:1',)), on_gpus=False).with_towers(3)


def momentum():
    return tf.train.MomentumOptimizer(RATE, MOMENTUM)


class Towers:
    """Independent trainings with momentum, in NumPy."""

    def __init__(self):
        self.values = np.tile([2.0, 5.0], (3, 1))
        self.slots = np.zeros([3, 2])

    def step(self):
        gradients = np.array(FEEDS)[:, None] * self.values[:, ::-1]
        self.slots = MOMENTUM * self.slots + gradients
        self.values = self.values - RATE * self.slots

    def average(self):
        self.values[:], self.slots[:] = self.values.mean(0), self.slots.mean(0)


def test_copies_are_independent_until_an_average_sets_them_to_numpys_mean():
    numpys = Towers()

    def assert_equal_to_numpys():
        found = session.run(values_by_name())
        for k in range(3):
            prefix = f'replica_{k}/' if k else ''
            slot, = [name for name in found if re.fullmatch(f'({prefix})+a/Momentum', name)]
            np.testing.assert_allclose(found[prefix + 'a'], numpys.values[k], rtol=1e-5)
            np.testing.assert_allclose(found[slot], numpys.slots[k], rtol=1e-5, atol=1e-6)
        return found
    with stepping('local', three_towers(), tower_fn, momentum) as (session, step):
        for steps in (1, 3, 2):  # averages at irregular steps
            for _ in range(steps):
                session.run(step.train_ops)
                numpys.step()
                assert_equal_to_numpys()
            assert session.run([step.average.scheduled, step.average.steps])[1] == steps
            numpys.average()
            found = assert_equal_to_numpys()
            assert {found['a'].tobytes()} == {found[f'replica_{k}/a'].tobytes() for k in (1, 2)}
        assert found['global_step'] == 6


def test_averages_respect_the_constraint_of_a_variable():
    def constrained(k, scope):
        a = tf.get_variable('a', [2], initializer=tf.constant_initializer([0.6, 0.8]),
                            constraint=lambda a: a / tf.norm(a))
        return dict(total_loss=FEEDS[k] * a[0] * a[1])
    with stepping('local', three_towers(), constrained, momentum, 4) as (session, step):
        for _ in range(3):
            session.run(step.train_ops)
            for assignment in step.average.scheduled, step.average.go_on:
                session.run(assignment)
                found = session.run(values_by_name())
                for k in range(3):
                    assert abs(np.linalg.norm(found[f'replica_{k}/a' if k else 'a']) - 1) < 1e-6


def test_scheduled_averages_use_numpys_momentum_and_others_leave_it_unchanged():
    numpys = Towers()
    start, velocity = None, np.zeros(2)
    with stepping('local', three_towers(), tower_fn, momentum, 4) as (session, step):
        def assert_equal_to_numpys():
            found = session.run(values_by_name())
            for k in range(3):
                np.testing.assert_allclose(found[f'replica_{k}/a' if k else 'a'], numpys.values[k], rtol=1e-5)
            return found
        session.run(step.average.go_on)  # no effect yet
        for on_schedule in (True, True, False, True, True):
            session.run(step.train_ops)
            numpys.step()
            numpys.average()
            session.run(step.average.scheduled if on_schedule else step.average.equalise)
            found = assert_equal_to_numpys()  # the mean, as a run would save it
            if on_schedule:
                mean = numpys.values[0].copy()
                velocity = 0.5 * velocity + (0 if start is None else mean - start)
                start = mean + 0.5 * velocity
                session.run(step.average.go_on)
                numpys.values[:] = start
                assert_equal_to_numpys()
        assert np.linalg.norm(velocity) > 0.1
    np.testing.assert_allclose(found['a/LocalVelocity'], velocity, rtol=1e-4)
    np.testing.assert_allclose(found['a/LocalStart'], start, rtol=1e-5)
    assert found['local_averaged_at'] == 5


def test_intervals_between_averages_grow_up_to_local_steps():
    def averages_until(last, local_steps):
        mode = update_mode('local', ['/cpu:0'], local_steps)
        return [step for step in range(1, last + 1) if mode.averages_after(step)]
    assert averages_until(20, 1) == list(range(1, 21))
    assert averages_until(48, 4) == [*range(1, 17), *range(18, 32, 2), *range(32, 49, 4)]
    assert averages_until(40, 3) == sorted({*range(1, 17), *range(18, 32, 2), *range(18, 41, 3)})
    apart = np.diff(averages_until(2000, 64))
    assert sorted(set(apart)) == [1, 2, 4, 8, 16, 32, 64] and len(apart) < 2000 / 64 + 50
    assert {*range(64, 2000, 64)} <= {*averages_until(2000, 64)}


def test_an_average_takes_the_smallest_loss_scale_and_count():
    def tower_fn(k, scope):
        a = tf.get_variable('a', [], initializer=tf.constant_initializer(2.0))
        factor = tf.placeholder_with_default(tf.constant(10000.0 if k == 1 else 1.0, tf.float16), [])
        return dict(total_loss=tf.cast(tf.cast(a, tf.float16) * factor, tf.float32))  # tower 1 overflows
    make = precision.FP16.optimizer(lambda: tf.train.GradientDescentOptimizer(0.5))
    with stepping('local', three_towers(), tower_fn, make) as (session, step):
        by_name = values_by_name()
        scales, counts = [[by_name[name + suffix] for suffix in ('', '_1', '_2')] for name in LOSS_SCALE]
        for _ in range(2):
            session.run(step.train_ops)
        assert session.run([scales, counts]) == [[2.0 ** 15, 2.0 ** 13, 2.0 ** 15], [2, 0, 2]]
        session.run(step.average.scheduled)
        assert session.run([scales, counts]) == [[2.0 ** 13] * 3, [0] * 3]
        assert session.run(by_name['a']) == pytest.approx((1.0 + 2.0 + 1.0) / 3)


@pytest.fixture(scope='module')
def run(tmp_path_factory, data_dir):
    """(The flags of a run of five steps with an average after every second, on two devices; its output)."""
    flags = dict(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path_factory.mktemp('run')), batch_size=8,
                 network='linear', max_steps=5, tower_device='cpu', variable_update='local', local_steps=2, num_gpus=2,
                 num_towers=2, save_steps=1, summary_steps=0, eval_steps=3, optimizer='momentum', learning_rate=0.02)
    output = io.StringIO()
    with tf.Graph().as_default(), contextlib.redirect_stdout(output):
        train(train_settings(**flags))
    return flags, output.getvalue()


def test_a_run_saves_only_after_averages_and_ends_with_one(run):
    flags, output = run
    assert 'update     local, averaged every 2 steps, more often at the start' in output
    assert 'rounded    --save_steps from 1 to 2, --eval_steps from 3 to 4: the next multiple of --local_st' in output
    assert re.findall(r'precision @ 1 = .*, step (\d+)$', output, re.M) == ['4', '5']
    saved = {step_of(prefix): variables(prefix) for prefix in checkpoints(flags['train_dir'])}
    assert list(saved) == [2, 4, 5] and saved[5]['examples_seen'] == 5 * 2 * 8
    keep = (1 + 5) / (10 + 5)  # the classic decay at the beginning of a run
    for name in ('linear/biases', 'linear/weights'):
        average = name + '/ExponentialMovingAverage'
        assert not np.array_equal(saved[5][name], saved[4][name])
        np.testing.assert_allclose(
            saved[5][average], keep * saved[4][average] + (1 - keep) * saved[5][name], atol=1e-6)


def test_a_changed_interval_continues_from_the_last_average(settings):
    devices, name = choose(1, 'cpu').with_towers(2), 'linear/weights'
    given = settings(variable_update='local', num_towers=2, num_gpus=1, local_steps=4)
    run = Run(plan_of(given, datasets.find(given.data).images(), devices, update_mode('local', devices, 4)))
    with run.adding():
        reads = [[variable.read_value() for variable in copy if variable.op.name.endswith(name)]
                 for copy in run.plan.mode.copied()[0]]
    before = {each: np.zeros(variable.shape, variable.dtype.as_numpy_dtype) for each, variable in run.saved.items()}
    before[f'{name}/{START}'] += 3
    before.update({tf.GraphKeys.GLOBAL_STEP: np.int64(27), AVERAGED_AT: np.int64(27)})
    assert not run.averages_after(27)  # an earlier start averaged every 3 steps
    with run.opened(before):
        for weights, in run.session.run(reads):
            np.testing.assert_array_equal(weights, 3)
    assert len(reads) == 2


def test_the_moving_averages_decay_is_a_bounded_power():
    steps, global_step = tf.placeholder(tf.int64, []), tf.train.create_global_step()
    variable = tf.get_variable('a', initializer=tf.constant(3.0))
    moved = averages.MovingAverages([variable], global_step, steps).move()
    average, = [each for each in tf.global_variables() if 'Moving' in each.op.name]
    with tf.Session() as session:
        initialise(session)
        for step, keep in ((90, 0.91 ** 8), (10 ** 6, averages.DECAY ** 8)):
            global_step.load(step, session)
            average.load(1.0, session)
            session.run(moved, {steps: 8})
            assert session.run(average) == pytest.approx(keep + (1 - keep) * 3, rel=1e-6)


@pytest.mark.stress
def test_a_signal_ends_a_run_with_an_average(data_dir, tmp_path):
    flags = dict(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / 'train'), batch_size=8, num_gpus=2,
                 variable_update='local', local_steps=1000, log_frequency=1, tower_device='cpu')
    process = start_script('multi_gpu_train.py', max_steps=100000, **flags)
    read_until(process, 'step 5,')
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=patient(60))
    assert process.returncode == 3, output
    stopped = last_variables(flags['train_dir'])
    last = int(stopped['global_step'])
    assert 5 <= last < 1000 and len(checkpoints(flags['train_dir'])) == 1
    whole = train(train_settings(**dict(flags, max_steps=last, train_dir=str(tmp_path / 'whole'))))
    assert_same_bits(stopped, whole)


def test_an_average_keeps_small_slots_and_variables_without_updates():
    table = np.array([1, 1e-3, 1e-8], np.float32)

    def tower_fn(k, scope):
        a = tf.get_variable('a', [2], initializer=tf.ones_initializer())
        frozen = [tf.get_variable(f'table_{dtype.name}', [3], dtype, tf.constant_initializer(table), trainable=False)
                  for dtype in (tf.float32, tf.float64)]
        # The second gradient is a millionth of the first, so its second moment is 1e-12 of the first's.
        loss = tf.reduce_sum(a * tf.constant([1.0, 1e-6])) + 0 * tf.cast(tf.reduce_sum(frozen[1]), tf.float32)
        return dict(total_loss=loss + 0 * tf.reduce_sum(frozen[0]))
    with stepping('local', three_towers(), tower_fn, lambda: tf.train.AdamOptimizer(0.1)) as (session, step):
        by_name = values_by_name()
        session.run(step.train_ops)
        before = session.run(by_name)
        session.run(step.average.scheduled)
        after = session.run(by_name)
    np.testing.assert_allclose(after['a/Adam_1'], before['a/Adam_1'], rtol=1e-6)
    assert after['a/Adam_1'][1] > 0
    for name in by_name:
        if 'table' in name:
            np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.parametrize('dtype', mostly_stress(
    [tf.bfloat16, tf.int64, tf.uint16, tf.bool], tf.bfloat16, tf.int64, tf.bool))
def test_slots_of_all_types_become_means_or_minima(dtype):
    class Slotted(tf.train.GradientDescentOptimizer):
        def _create_slots(self, var_list):
            for variable in var_list:
                self._get_or_make_slot(variable, tf.zeros(variable.shape, dtype), 'slot', self._name)

        def _resource_apply_dense(self, grad, handle):
            with tf.control_dependencies([self.get_slot(handle, 'slot').assign(tf.cast(grad, dtype))]):
                return super()._resource_apply_dense(grad, handle)
    own_values = np.array([[3, 0, 1], [5, 1, 1]], np.float32)

    def tower_fn(k, scope):
        return dict(total_loss=tf.reduce_sum(tf.get_variable('a', [3]) * tf.constant(own_values[k])))
    with stepping('local', ['/cpu:0', '/cpu:1'], tower_fn, lambda: Slotted(0.1)) as (session, step):
        slots = [value for name, value in values_by_name().items()
                 if value.dtype == dtype and 'GradientDescent' in name]
        session.run(step.train_ops)
        session.run(step.average.scheduled)
        after = session.run([tf.cast(slot, tf.float32) for slot in slots])
    expected = own_values.mean(0) if dtype.is_floating else own_values.astype(dtype.as_numpy_dtype).min(0)
    np.testing.assert_array_equal(after, [expected] * 2)
