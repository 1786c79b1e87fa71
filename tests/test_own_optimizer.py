"""Users' optimizers, clipping, AdamW and Muon: NumPy's steps in every mode, and checks of the rules."""
import random
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from cifar10.base.errors import UsageError
from cifar10.base.graphs import has_old_shapes
from cifar10.base.registry import OPTIMIZERS, UPDATE_MODES
from cifar10.model.optimizers import AdamW, Clipped, Muon
from cifar10.model.precision import LossScaled
from cifar10.own import optimizer as own_optimizer
from tests.helpers import LINEAR, ROOT, initialise, stepping, train, values_by_name
from tests.test_muon import numpys_steps as muons_steps

LION = f"{ROOT / 'examples' / 'lion.py'}:lion"
RATE, AUXILIARY, DECAY, NORM = 0.05, 0.02, 0.3, 0.7


def numpys_steps(name, values, gradients):
    """Returns variables after an optimizer has applied the same gradients in three steps."""
    if name == 'muon':
        return muons_steps(*values, [gradients] * 3, [(RATE, AUXILIARY)] * 3)
    values, m, v = [np.array(each, float) for each in values], [0.0] * len(values), [0.0] * len(values)
    if name == 'clipped':
        norm = np.sqrt(sum((each ** 2).sum() for each in gradients))
        gradients = [each * min(1, NORM / norm) for each in gradients]
    for t in range(1, 4):
        for i, g in enumerate(gradients):
            if name == 'clipped':
                values[i] = values[i] - RATE * g
            elif name == 'lion':
                values[i] = values[i] - RATE * np.sign(0.9 * m[i] + 0.1 * g)
                m[i] = 0.99 * m[i] + 0.01 * g
            else:
                m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g ** 2
                kept = values[i] * (1 - RATE * DECAY if values[i].ndim > 1 else 1)
                values[i] = kept - RATE * np.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t) * m[i] / (np.sqrt(v[i]) + 1e-8)
    return values


MAKE = dict(clipped=lambda: Clipped(tf.train.GradientDescentOptimizer(RATE), NORM), adamw=lambda: AdamW(RATE, DECAY),
            lion=lambda: OPTIMIZERS.load(LION)(tf.constant(RATE)), muon=lambda: Muon(RATE, AUXILIARY))


@pytest.mark.parametrize('mode, name', [
    ('parameter_server', 'clipped'), ('replicated', 'adamw'), ('replicated', 'clipped'), ('mirrored', 'lion'),
    ('async', 'muon'), ('local', 'adamw')])
def test_steps_match_numpy_in_every_mode(mode, name):
    rng = np.random.default_rng(1)
    shapes = ((3, 3, 2, 4) if name == 'muon' else (3, 4)), (5,)
    initial = [rng.normal(size=shape) for shape in shapes]
    towers = 1 if mode in ('async', 'local') else 2  # in these modes, each tower applies its own gradients
    slopes = [rng.normal(size=(towers, *shape)) for shape in shapes]  # the loss is linear, so these are its gradients

    def tower_fn(k, scope):
        variables = [tf.get_variable(f'v{i}', each.shape, initializer=tf.constant_initializer(each))
                     for i, each in enumerate(initial)]
        rows = [tf.placeholder_with_default(slope[k].astype(np.float32), slope[k].shape) for slope in slopes]
        tf.get_variable('unused', [])
        return dict(total_loss=tf.add_n([tf.reduce_sum(v * row) for v, row in zip(variables, rows)]))

    with stepping(mode, [f'/cpu:{k}' for k in range(towers)], tower_fn, MAKE[name]) as (session, step):
        for _ in range(3):
            session.run(step.train_ops[0])
        values = session.run(values_by_name())
    expected = numpys_steps(name, initial, [slope.mean(0) for slope in slopes])
    for i, each in enumerate(expected):
        np.testing.assert_allclose(values[f'v{i}'], each, atol=2e-5)
    slots = dict(clipped=set(), lion={'v0/Lion', 'v1/Lion'}, muon={'v0/Muon', 'v1/Muon'}, adamw={
        'v0/AdamW', 'v0/AdamW_1', 'v1/AdamW', 'v1/AdamW_1', 'beta1_power', 'beta2_power'})[name]
    saved = {variable.op.name for variable in tf.global_variables()}
    assert saved == slots | {'v0', 'v1', 'unused', 'global_step'}


def test_a_short_gradient_is_not_clipped():
    variable = tf.get_variable('w', initializer=[1.0, 1.0])
    class Twice(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, global_step=None, name=None):
            assert [gradient for gradient, _ in grads_and_vars]  # a user's override may consume it
            return super().apply_gradients(grads_and_vars, global_step, name)
    step = Clipped(Twice(1.0), 5.0).apply_gradients([(tf.constant([3.0, 3.9]), variable)])
    with tf.Session() as session:
        initialise(session)
        session.run(step)
        np.testing.assert_allclose(session.run(variable), [-2.0, -2.9], rtol=1e-6)


def test_loss_scaling_changes_neither_clipping_nor_decay_and_skips_overflows():
    variables = [tf.get_variable(name, initializer=[[1.0, -2.0]]) for name in ('scaled', 'plain')]
    slope = tf.placeholder(tf.float32, [1, 2])
    steps = []
    for variable, wrap in zip(variables, (LossScaled, lambda optimizer: optimizer)):
        optimizer = wrap(Clipped(AdamW(RATE, DECAY), NORM))
        pairs = optimizer.compute_gradients(tf.reduce_sum(variable * slope), [variable])
        steps.append(optimizer.apply_gradients(pairs))
    with tf.Session() as session:
        initialise(session)
        for gradient in ([[3.0, 4.0]], [[0.1, -0.2]]):
            session.run(steps, {slope: gradient})
        scaled, plain = session.run(variables)
        np.testing.assert_allclose(scaled, plain, rtol=1e-6)
        session.run(steps[0], {slope: [[np.inf, 1.0]]})
        np.testing.assert_array_equal(session.run(variables[0]), scaled)


CUSTOM = '''
import tensorflow as tf2
import tensorflow.compat.v1 as tf
class Mine(tf.train.GradientDescentOptimizer):
    {}
def mine(rate):
    {}
    return Mine(rate)
'''


@pytest.fixture
def mine(own):
    """A function that writes an optimizer with given lines and returns its name."""
    return lambda lines='pass', before='pass': own(CUSTOM.format(lines, before), 'mine')


@pytest.mark.parametrize('mode', UPDATE_MODES)
def test_saved_slots_have_tensorflow_1s_names_in_every_mode(mode, mine):
    make = OPTIMIZERS.load(mine(before='return tf.train.AdamOptimizer(rate)'))

    def tower_fn(k, scope):
        return dict(total_loss=tf.get_variable('v', []) * tf.placeholder_with_default(1.0, []))
    with stepping(mode, ['/cpu:0', '/cpu:1'], tower_fn, lambda: make(tf.constant(RATE))):
        names = {variable.op.name for variable in tf.global_variables()}
    assert names == {'v', 'v/Adam', 'v/Adam_1', 'beta1_power', 'beta2_power', 'global_step'}


APPLY = '_resource_apply_dense(self, grad, handle)'


@pytest.mark.parametrize('lines, before, part', [
    ('pass', 'return tf2.keras.optimizers.SGD(0.1)', 'keras.src.optimizers.sgd.SGD; return a tf.compat.v1.train.'),
    ('tf2.get_current_name_scope()', 'return tf2.train.AdamOptimizer(rate)',
     'mine.py); write import tensorflow.compat.v1 as tf'),
    ('pass', '1 / 0', 'ZeroDivisionError: division by zero (line 7 of '),
    (f'def {APPLY}: raise KeyError("x")', 'pass', "KeyError: 'x' (line 5 of "),
    ('def compute_gradients(self, *args, **options): return super().compute_gradients(*args, **options)', 'pass',
     'Mine overrides compute_gradients'),
    ('_resource_apply_dense = tf.train.Optimizer._resource_apply_dense', 'pass',
     'Mine has no _resource_apply_dense(gradient, variable)'),
    ('def apply_gradients(self, pairs, global_step=None, name=None): return super().apply_gradients(pairs)', 'pass',
     'its apply_gradients does not increment the given global_step'),
    (f'def {APPLY}: return handle.assign(handle.initialized_value())', 'pass',
     'NotImplementedError: no message (line 5 of '),
    ('pass', 'return tf.train.MomentumOptimizer(0.1, 0.9)', 'its steps do not depend on the learning rate'),
])
def test_a_broken_rule_is_reported(mine, lines, before, part):
    name = mine(lines, before)
    with pytest.raises(UsageError) as refused:
        own_optimizer.check(name, averages_within=False)
    message = str(refused.value)
    assert part in message and message.startswith(f'--optimizer={name}: ') and '\n' not in message


def test_the_file_does_not_change_the_process(mine, settings):
    def state():
        return (random.getstate(), repr(np.random.get_state()), tf.RegisterGradient, has_old_shapes(),
                dict(vars(flags.FLAGS)), list(sys.argv), list(sys.path))
    name = mine('pass', 'sys.path.append("x"); sys.argv.append("x"); np.random.rand(); tf.disable_v2_tensorshape()')
    with open(name.rpartition(':')[0], 'a') as stream:
        stream.write('import sys; import numpy as np\n')
    before = state()
    train(settings(optimizer=name, learning_rate=0.1, variable_update='mirrored', num_towers=2, num_gpus=2))
    assert state() == before


def test_an_optimizer_that_combines_gradients_needs_their_mean(mine):
    name = mine('def apply_gradients(self, *arguments): return super().apply_gradients(*arguments)')
    own_optimizer.check(name, averages_within=False)
    with pytest.raises(UsageError, match='overrides apply_gradients, .* mean gradients'):
        own_optimizer.check(name, averages_within=True)


def test_user_errors_end_the_program_with_one_line(call, mine, tmp_path):
    small = tmp_path / 'small.py'  # only variables of a real network are too large for this optimizer
    small.write_text(CUSTOM.format(f'def {APPLY}: assert grad.shape[0] < 20; return super().{APPLY[:21]}(grad, handle)',
                                   'pass'))
    too_large = [f'--optimizer={small}:mine', '--learning_rate=0.1', f'--network={LINEAR}']
    for arguments, part in (
            (too_large, f'AssertionError: no message (line 5 of {small})'),
            ([f'--optimizer={mine()}'], 'has no default learning rate; give --learning_rate')):
        status, error = call('multi_gpu_train.py', '--tower_device=cpu', *arguments)
        assert status == 2 and part in error and len(error.strip().splitlines()) == 1
    assert not list((tmp_path / 'train').glob('*'))
