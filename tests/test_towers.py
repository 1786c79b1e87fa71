"""build_towers, tower_loss and average_gradients, on models without images."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel.packing import _LARGE, pack, pack_gradients
from cifar10.parallel.towers import average_gradients, build_towers, tower_loss
from tests.helpers import value_of

CPUS = ['/cpu:0'] * 3


def test_the_average_matches_numpys_mean():
    random = np.random.default_rng(0)
    shapes = [(3, 4), (5,), ()]
    variables = [tf.get_variable(f'v{i}', shape) for i, shape in enumerate(shapes)]
    values = [[random.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(3)]
    averaged = average_gradients([[(tf.constant(g), v) for g, v in zip(tower, variables)] for tower in values])
    assert [variable is expected for (_, variable), expected in zip(averaged, variables)] == [True] * 3
    for mean, *gradients in zip(value_of([gradient for gradient, _ in averaged]), *values):
        np.testing.assert_allclose(mean, np.mean(gradients, 0), rtol=1e-6)


def test_variables_that_towers_do_not_share_are_refused():
    def tower(k, scope):
        weight = tf.Variable(1.0)
        return [(tf.gradients(tf.square(weight), weight)[0], weight)]

    grads = build_towers(CPUS[:2], tower)
    assert len(tf.trainable_variables()) == 2
    with pytest.raises(ValueError, match='tower 1 does not have the variables of tower 0'):
        average_gradients(grads)


def test_towers_and_pairs_may_be_iterators_as_in_the_tutorials_function():
    variables = [tf.get_variable('one', [3]), tf.get_variable('two', [])]
    lists = [[(k * tf.ones_like(variable), variable) for variable in variables] for k in (1.0, 2.0)]
    clipped = (zip(tf.clip_by_global_norm(gradients, 1.0)[0], variables)
               for gradients in ([gradient for gradient, _ in pairs] for pairs in lists))
    averaged = average_gradients(clipped)
    assert [variable for _, variable in averaged] == variables
    for mean in value_of([gradient for gradient, _ in averaged]):  # of 4 equal numbers with norm 1
        np.testing.assert_allclose(mean, 0.5, rtol=1e-6)


def test_packets_of_towers_with_different_variables_are_refused():
    one, other = tf.get_variable('one', []), tf.get_variable('other', [])
    packets, _ = pack_gradients([
        [(tf.constant(1.0), one), (tf.constant(1.0), other)], [(tf.constant(1.0), one), (None, other)]])
    with pytest.raises(ValueError, match='tower 1 does not have the variables of tower 0'):
        average_gradients(packets)


def test_the_mean_of_packets_has_the_pairs_of_the_plain_mean():
    used, unused = tf.get_variable('used', [2]), tf.get_variable('unused', [])
    packets, unpack = pack_gradients([[(tf.constant([1.0, k]), used), (None, unused)] for k in (2.0, 4.0)])
    (mean, variable), last = unpack(average_gradients(packets))
    assert variable is used and last == (None, unused)
    np.testing.assert_array_equal(value_of(mean), [1.0, 3.0])


def test_large_gradients_travel_alone_and_the_last_layers_gradient_first():
    sizes = [_LARGE, 3, 2 * _LARGE, _LARGE - 1, _LARGE + 1]
    packets, _ = pack([tf.placeholder(tf.float32, [size]) for size in sizes])
    assert [packet.shape[0] for packet in packets] == [_LARGE + 1, 2 * _LARGE, _LARGE, 3 + _LARGE - 1]


@pytest.mark.parametrize('towers', [([0, 1, 1],), ([0, 1, 1], [1, 5, 0])])
def test_repeated_rows_of_a_sparse_gradient_are_added(towers):
    table = tf.get_variable('table', [6, 2])
    tower_grads = []
    for rows in towers:
        loss = tf.reduce_sum(tf.gather(table, rows) * [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        tower_grads.append([(tf.gradients(loss, table)[0], table)])
    (gradient, _), = average_gradients(tower_grads)
    expected = np.zeros([6, 2])
    for rows in towers:
        np.add.at(expected, rows, np.array([[1, 2], [3, 4], [5, 6]]) / len(towers))
    np.testing.assert_allclose(value_of(gradient), expected)


def test_a_sparse_and_a_dense_gradient_are_averaged():
    table = tf.get_variable('table', [3, 1])
    sparse = tf.gradients(tf.reduce_sum(tf.gather(table, [2])), table)[0]
    (gradient, _), = average_gradients([[(sparse, table)], [(tf.ones([3, 1]), table)]])
    np.testing.assert_allclose(value_of(gradient), [[0.5], [0.5], [1.0]])


def test_unused_variables_keep_none_and_partly_used_ones_are_named():
    used, unused = tf.get_variable('conv2/weights', []), tf.get_variable('unused', [])
    both = [(tf.constant(1.0), used), (None, unused)]
    assert average_gradients([both, both])[1] == (None, unused)
    with pytest.raises(ValueError, match='tower 1 has no gradient for conv2/weights'):
        average_gradients([both, [(None, used), (None, unused)]])


def test_mismatched_lists_are_refused():
    one, other = tf.get_variable('one', []), tf.get_variable('other', [])
    with pytest.raises(ValueError, match='no towers'):
        average_gradients([])
    with pytest.raises(ValueError, match='tower 1'):
        average_gradients([[(tf.constant(1.0), one)], [(tf.constant(1.0), other)]])


def test_towers_share_variables_and_later_code_does_not_reuse_them():
    def tower(k, scope):
        return scope, tf.get_variable('layer/w', []), tf.constant(float(k), name='c')
    towers = build_towers(CPUS, tower)
    assert [scope for scope, _, _ in towers] == ['tower_0/', 'tower_1/', 'tower_2/']
    assert [constant.op.name for _, _, constant in towers] == ['tower_0/c', 'tower_1/c', 'tower_2/c']
    assert len({id(variable) for _, variable, _ in towers}) == 1 and len(tf.global_variables()) == 1
    tf.get_variable('created_after_the_towers', [])  # the classic loop left reuse on, so this failed


def test_a_misspelt_name_in_a_later_tower_raises_an_error():
    with pytest.raises(ValueError, match='wieghts'):
        build_towers(CPUS, lambda k, scope: tf.get_variable('wieghts' if k else 'weights', []))


def test_a_towers_loss_is_the_sum_of_its_own_losses():
    def tower(k, scope):
        def network():
            for value in (1.0, 2.0):
                tf.add_to_collection(tf.GraphKeys.LOSSES, tf.constant(value * 10 ** k))
            return k
        return tower_loss(scope, network)
    losses, outputs = zip(*build_towers(CPUS, tower))
    assert outputs == (0, 1, 2)
    assert value_of(list(losses)) == [3.0, 30.0, 300.0]


def test_a_network_without_a_loss_raises_an_error():
    with pytest.raises(ValueError, match='tower_0'):
        build_towers(CPUS[:1], lambda k, scope: tower_loss(scope, lambda: None))
