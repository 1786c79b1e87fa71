"""Towers over several devices as micro-batches of a pipeline: the schedule, the bits, the cuts of networks."""

import pytest
import tensorflow.compat.v1 as tf

from benchmarks.pipeline import BACKWARD, FORWARD, Sleepers
from cifar10.base.errors import UsageError
from cifar10.model.parts import divided, next_part
from cifar10.model.recipe import Recipe
from cifar10.parallel import devices
from tests import networks
from tests.helpers import ancestors, mostly_stress, update_mode

pytestmark = pytest.mark.classic

# --------------------------------------------------------------------------------------------------------- the schedule

@pytest.mark.parametrize('per_tower, groups, towers, slow', mostly_stress(
    [(2, 1, 5, -1), (2, 1, 5, 0), (3, 1, 5, -1), (2, 2, 6, -1)], (3, 1, 5, -1), (2, 2, 6, -1)))
def test_towers_pass_through_the_devices_in_order(per_tower, groups, towers, slow):
    # One device is slower, so that a tower that overtakes is detected. The devices would accept several towers.
    seconds = [{FORWARD: 0.005, BACKWARD: 0.01}] * per_tower
    seconds[slow] = {FORWARD: 0.01, BACKWARD: 0.03}
    cpus = devices.choose(groups * per_tower, 'cpu', per_tower).with_towers(towers)
    sleepers = Sleepers(cpus, seconds, locked=False)
    with sleepers.session() as session:
        session.run(sleepers.step.train_ops)
    begins, ends = ({visit: times[i] for visit, times in sleepers.visits.items()} for i in (0, 1))
    for k in range(towers):
        previous = k - groups
        for s in range(per_tower):
            oldest = k - (per_tower - s) * groups
            for earlier in ((FORWARD, previous, s), (BACKWARD, oldest, s)):
                assert begins[FORWARD, k, s] >= ends.get(earlier, 0), (k, s, earlier)
            assert begins[BACKWARD, k, s] >= ends.get((BACKWARD, previous, s), 0), (k, s)
    # There are exactly as many active towers as devices.
    for s in range(per_tower):
        assert max(sum(begins[FORWARD, k, s] <= begins[FORWARD, last, s] < ends[BACKWARD, k, s]
                       for k in range(group, towers, groups))
                   for group in range(groups) for last in range(group, towers, groups)) == per_tower - s


def test_a_part_waits_for_the_whole_backward_pass_of_an_earlier_tower():
    cpus = devices.choose(2, 'cpu', 2).with_towers(4)
    mode = update_mode('parameter_server', cpus)
    begun, handed = [], []

    @tf.custom_gradient
    def watched(x):
        def gradient(dy):
            handed.append(tf.identity(dy))
            return handed[-1]
        return x, gradient

    def tower(k, scope):
        weights = [tf.get_variable(name, [], initializer=tf.ones_initializer()) for name in ('first', 'second')]
        x = tf.placeholder_with_default(tf.ones([]), []) * weights[0]
        with divided(cpus.devices_of(k), 2, mode.gate(k)):
            begun.append(next_part(x))
            return dict(total_loss=tf.square(watched(begun[k]) * weights[1]))
    step = mode.build(tower, lambda: tf.train.GradientDescentOptimizer(0.1), tf.train.get_or_create_global_step())
    for k in range(1, 4):
        gradient, = [each for each in step.turns.computed[k - 1] if each.device == '/device:CPU:1']
        assert {handed[k - 1].op, gradient.op} <= ancestors(begun[k].op)
        assert step.turns.ended[k - 1] not in ancestors(begun[k].op)


@pytest.mark.parametrize('per_tower', [2, 3])
def test_a_step_takes_the_time_of_a_pipeline(per_tower):
    # The longest chain of dependent parts, if all parts take the same time.
    towers = 4
    sleepers = Sleepers(devices.choose(per_tower, 'cpu', per_tower).with_towers(towers), [None] * per_tower)
    chains = {}
    for op in sleepers.step.train_ops[0].graph.get_operations():  # dependencies come first
        before = [tensor.op for tensor in op.inputs] + op.control_inputs
        chains[op] = max((chains[each] for each in before), default=0) + (op.type == 'PyFunc')
    assert max(chains.values()) == 2 * (towers + per_tower - 1)


# ------------------------------------------------------------------------------------------------------------- the cuts

@pytest.mark.parametrize('num_parts, num_devices, expected', [
    (3, 1, [0, 0, 0]), (2, 2, [0, 1]), (3, 2, [0, 0, 1]), (5, 2, [0, 0, 0, 1, 1]), (5, 3, [0, 0, 1, 1, 2])])
def test_successive_parts_share_a_device_and_gates_know_the_boundaries(num_parts, num_devices, expected):
    passed = []

    def gate(tensor, source, target):
        passed.append((source, target))
        return tf.no_op()
    names = [f'/device:GPU:{i}' for i in range(num_devices)]
    with tf.device('/device:GPU:7'), divided(names, num_parts, gate) as division:
        made = [tf.ones([])]
        for _ in range(num_parts - 1):
            made.append(next_part(made[-1]) + 1.0)
        with tf.device('/cpu:0'):
            elsewhere = tf.ones([])
    tf.gradients(made[-1], made[0], colocate_gradients_with_ops=True)
    assert [each.device for each in made] == [names[i] for i in expected]
    assert elsewhere.device == '/device:CPU:0' and division.parts == num_parts
    forward = list(zip(expected, expected[1:]))
    assert passed == forward + [(target, source) for source, target in reversed(forward)]


def test_a_cut_without_a_context_has_no_effect():
    x = tf.ones([])
    assert next_part(x) is x


def test_networks_have_the_documented_number_of_parts(settings):
    for given, count in ((dict(), 2), (dict(preset='fast', max_steps=None), 3),
                         (dict(network='three_parts'), 3)):
        recipe = Recipe(settings(**given).recipe, 10)
        recipe.check_parts(count)
        with pytest.raises(UsageError, match=f'--gpus_per_tower={count + 1}, but --network=.* has {count} parts; '
                                             f'use at most --gpus_per_tower={count}'):
            recipe.check_parts(count + 1)
    with pytest.raises(UsageError, match='--network=linear has a single part; use at most --gpus_per_tower=1'):
        Recipe(settings(network='linear').recipe, 10).check_parts(2)


def test_an_impossible_cut_raises_an_error():
    x = tf.ones([])
    with divided(['/cpu:0', '/cpu:1'], 2):
        with pytest.raises(TypeError, match='takes a single tensor, not a tuple'):
            next_part((x, x))
        with pytest.raises(ValueError, match='within tf.cond'):
            tf.cond(x > 0, lambda: next_part(x), lambda: x)


def test_variables_are_on_the_devices_of_their_parts():
    with divided([f'/device:CPU:{i}' for i in range(3)], 3):
        networks.three_parts(tf.zeros([4, 24, 24, 3]), training=True)
    assert [each.device for each in tf.trainable_variables()] == ['/device:CPU:0', '/device:CPU:2']
