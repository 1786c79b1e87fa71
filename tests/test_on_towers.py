"""`cifar10.on_towers`: a script's step on several towers takes the steps of plain TensorFlow 1, or it is refused."""
import random
import sys

import numpy as np
import pytest

import cifar10
from cifar10 import UsageError, on_towers
from tests.helpers import ancestors, mostly_stress, run_forked, tf

STEPS = 5
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal([8, 3]).astype(np.float32)
Y = RANDOM.standard_normal([8, 1]).astype(np.float32)
WORDS = RANDOM.integers(0, 9, [8, 4])
MASK = (RANDOM.random([8, 4]) < 0.6).astype(np.float32)
LAYOUTS = [('parameter_server', 4), ('replicated', 2)]


def session():
    return tf.Session(config=tf.ConfigProto(device_count={'CPU': 2}))


def halves(batch, towers):
    """Returns the towers' batches: parts of a batch, which is a structure of arrays."""
    parts = zip(*[np.split(each, towers) for each in tf.nest.flatten(batch)])
    return [tf.nest.pack_sequence_as(batch, list(map(tf.constant, part))) for part in parts]


def initialised(run, before=None):
    """Sets all variables to the same values in each graph; returns the variables."""
    run.run([tf.global_variables_initializer(), tf.tables_initializer()])
    variables = {each.op.name: each for each in tf.global_variables()}
    for name, value in (before or {}).items():
        variables[name].load(value, run)
    run.run(tf.local_variables_initializer())
    return variables


def plain(*steps, batch, convert=lambda batch: batch):
    """Returns the variables before and after steps in plain TensorFlow 1."""
    with tf.Graph().as_default(), session() as run:
        tf.set_random_seed(0)
        tf.train.get_or_create_global_step()
        given = convert(tf.nest.map_structure(tf.constant, batch))
        built = [step(given) for step in steps]
        variables = initialised(run)
        before = run.run(variables)
        for _ in range(STEPS):
            for _, train_op, *_ in built:
                run.run(train_op)
        return before, run.run(variables)


def on_them(*steps, batch, before, mode, towers, convert=lambda batch: batch):
    """Returns the variables after the same steps on towers."""
    with tf.Graph().as_default(), session() as run:
        batches = [convert(each) for each in halves(batch, towers)]
        built = [on_towers(step, batches, [f'/cpu:{k}' for k in range(min(towers, 2))], mode) for step in steps]
        variables = initialised(run, before)
        for _ in range(STEPS):
            for train_op, *_ in built:
                run.run(train_op)
        return run.run(variables)


def assert_equal(found, expected, towers):
    assert set(found) == set(expected)
    for name, value in expected.items():
        if towers == 1 and name != tf.GraphKeys.GLOBAL_STEP:
            assert found[name].tobytes() == value.tobytes(), name
        elif value.dtype == np.float32:
            np.testing.assert_allclose(found[name], value, rtol=0, atol=2e-5, err_msg=name)


def linear(batch):
    x, y = batch
    loss = tf.reduce_mean(tf.square(x @ tf.get_variable('w', [3, 1]) - y))
    return loss, tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())


def adversary(batch):
    def first(x):
        with tf.variable_scope('first', reuse=tf.AUTO_REUSE):
            return x @ tf.get_variable('w', [3, 2])

    def second(x):
        with tf.variable_scope('second', reuse=tf.AUTO_REUSE):
            return tf.nn.sigmoid(x @ tf.get_variable('w', [2, 1]))
    return second(first(batch[0]))


def first_of_two(batch):
    loss = tf.reduce_mean(tf.square(adversary(batch)))
    return loss, tf.train.AdamOptimizer(0.05).minimize(
        loss, tf.train.get_global_step(), var_list=tf.trainable_variables('first'))


def second_of_two(batch):
    loss = -tf.reduce_mean(tf.square(adversary(batch)))
    return loss, tf.train.AdamOptimizer(0.02).minimize(loss, var_list=tf.trainable_variables('second'))


@pytest.mark.parametrize('mode, towers', mostly_stress(
    [('parameter_server', 1), *LAYOUTS], ('replicated', 2)))
def test_two_steps_in_one_graph_share_variables_and_have_tensorflow_1s_slots(mode, towers, capsys):
    before, expected = plain(first_of_two, second_of_two, batch=(X, Y))
    assert {'beta1_power_1', 'first/w/Adam_1'} <= set(expected)
    found = on_them(first_of_two, second_of_two, batch=(X, Y), before=before, mode=mode, towers=towers)
    assert_equal(found, expected, towers)
    assert 'does not increment the global step' in capsys.readouterr().out
    assert found[tf.GraphKeys.GLOBAL_STEP] == 2 * STEPS  # the package counts the second step


def step_of_both(number):  # of a class that builds both optimizers at once, in plain TensorFlow 1 for both steps
    def step(batch):
        graph = tf.get_default_graph()
        graph.steps = getattr(graph, 'steps', None) or [first_of_two(batch), second_of_two(batch)]
        return graph.steps[number]
    return step


@pytest.mark.parametrize('mode, towers', mostly_stress(LAYOUTS, ('replicated', 2)))
def test_a_step_omits_the_optimizer_of_the_other_step(mode, towers):
    steps = step_of_both(0), step_of_both(1)
    before, expected = plain(*steps, batch=(X, Y))
    assert_equal(on_them(*steps, batch=(X, Y), before=before, mode=mode, towers=towers), expected, towers)


def test_a_second_step_with_an_unshared_variable_gets_a_warning(capsys):
    def step(batch):
        loss = tf.reduce_mean(tf.square(batch[0] @ tf.Variable(tf.ones([3, 1]), name='w') - batch[1]))
        return loss, tf.train.AdamOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    with tf.Graph().as_default():
        for is_second in False, True:
            on_towers(step, halves((X, Y), 2), ['/cpu:0'])
            assert ('an earlier step has a variable w' in capsys.readouterr().out) == is_second


def second_after_first(batch):  # both updates in one step
    results = adversary(batch)
    first = tf.train.AdamOptimizer(0.05).minimize(
        tf.reduce_mean(tf.square(results)), var_list=tf.trainable_variables('first'))
    average = tf.train.ExponentialMovingAverage(0.9)
    loss = -tf.reduce_mean(tf.log(results))  # the gradient of a logarithm waits for the gradient of the mean
    averaged = average.apply([loss])
    with tf.control_dependencies([first]):
        second = tf.train.AdamOptimizer(0.02).minimize(
            loss, tf.train.get_global_step(), var_list=tf.trainable_variables('second'))
    return loss, tf.group(second, averaged)


@pytest.mark.parametrize('mode, towers', mostly_stress(LAYOUTS, ('replicated', 2)))
def test_gradients_that_wait_for_an_update_use_the_values_before_it(mode, towers, capsys):
    before, expected = plain(second_after_first, batch=(X, Y))
    found = on_them(second_after_first, batch=(X, Y), before=before, mode=mode, towers=towers)
    assert_equal(found, expected, towers)
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_reads_before_an_update_also_precede_the_averaged_update(mode):
    def step(batch):
        weight, before = (tf.get_variable(name, [], initializer=tf.ones_initializer()) for name in ('w', 'before'))
        value = weight.read_value()
        loss = tf.reduce_mean(tf.square(batch * value))
        trained = tf.train.GradientDescentOptimizer(0.1).minimize(loss, var_list=[weight])
        return loss, tf.group(trained, before.assign(2 * value))
    with tf.Graph().as_default() as graph:
        on_towers(step, [tf.placeholder(tf.float32, [2])] * 2, ['/cpu:0', '/cpu:1'], mode)
    update = [op for op in graph.get_operations() if op.name.startswith('update/network')]
    changes = [op for op in update if op.type == 'ResourceApplyGradientDescent']
    for change in changes:
        read, = [op for op in update if op.type == 'ReadVariableOp' and op.inputs[0] is change.inputs[0]]
        assert read in ancestors(change)
    assert len(changes) == (1 if mode == 'parameter_server' else 2)


def test_updates_of_all_copies_use_one_read_of_the_global_step():
    def step(batch):
        rate = 0.1 / tf.cast(1 + tf.train.get_or_create_global_step(), tf.float32)
        loss = tf.reduce_mean(batch) * tf.get_variable('w', [])
        return loss, tf.train.GradientDescentOptimizer(rate).minimize(loss)
    with tf.Graph().as_default() as graph:
        on_towers(step, [tf.placeholder(tf.float32, [2])] * 3, ['/cpu:0', '/cpu:1', '/cpu:2'], 'replicated')
        handle = tf.train.get_global_step().handle
    found = [{each for each in ancestors(op) if each.type == 'ReadVariableOp' and each.inputs[0] is handle}
             for op in graph.get_operations() if op.type == 'ResourceApplyGradientDescent']
    assert len(found) == 3 and len(found[0]) == 1 and found[0] == found[1] == found[2]


def sparse(batch):
    words, mask, y = batch
    masked = words * tf.cast(mask, words.dtype)
    return dict(bags=tf.sparse.from_dense(masked), y=y)


def of_sparse(batch):
    table = tf.get_variable('table', [9, 3])
    x = tf.nn.embedding_lookup_sparse(table, tf.sparse.fill_empty_rows(batch['bags'], tf.zeros([], tf.int64))[0], None)
    return linear((x, batch['y']))


def ragged(batch):
    words, mask, y = batch
    return tf.RaggedTensor.from_tensor(words, lengths=tf.cast(tf.reduce_sum(mask, 1), tf.int64)), y


def of_ragged(batch):
    words, y = batch
    x = tf.reduce_sum(words.with_values(tf.nn.embedding_lookup(tf.get_variable('table', [9, 3]), words.values)), 1)
    return linear((x, y))


@pytest.mark.parametrize('mode, towers', mostly_stress(LAYOUTS, ('replicated', 2)))
@pytest.mark.parametrize('step, convert', [(of_sparse, sparse), (of_ragged, ragged)])
def test_sparse_and_ragged_batches_train_as_on_one_device(step, convert, mode, towers, capsys):
    options = dict(batch=(WORDS, MASK, Y), convert=convert)
    before, expected = plain(step, **options)
    assert_equal(on_them(step, before=before, mode=mode, towers=towers, **options), expected, towers)
    assert capsys.readouterr().out == ''


def test_scalar_outputs_are_averaged_and_other_outputs_are_joined():
    def step(batch):
        loss, train_op = linear(batch)
        return loss, train_op, dict(mean=tf.reduce_mean(batch[0]), rows=[batch[0] * 2], count=tf.shape(batch[0])[0])
    with tf.Graph().as_default(), session() as run:
        _, _, outputs = on_towers(step, halves((X, Y), 4), ['/cpu:0', '/cpu:1'])
        initialised(run)
        found = run.run(outputs)
    np.testing.assert_allclose(found['mean'], X.mean(), rtol=1e-5)
    np.testing.assert_array_equal(found['rows'][0], 2 * X)
    assert found['count'] == 2


def over_the_batch(batch):  # the example weights vary between towers
    words, mask, y = batch
    x = tf.nn.embedding_lookup(tf.get_variable('table', [9, 3]), words) @ tf.get_variable('w', [3, 1])
    losses = tf.square(x[..., 0] - y) * mask
    return tf.reduce_sum(losses) / tf.reduce_sum(mask)


def summed(batch):
    x, y = batch
    outputs = tf.get_variable('bias', [1]) + x @ tf.get_variable('w', [3, 1])
    return tf.reduce_mean(tf.square(tf.get_variable('offset', [1]) + tf.get_variable('scale', []) * outputs - y))


def summed_in_place(batch):  # TensorFlow 1 allows this
    x, y = batch
    outputs, scaled = tf.get_variable('bias', [1]), tf.get_variable('scale', [])
    outputs += x @ tf.get_variable('w', [3, 1])
    scaled *= outputs
    return tf.reduce_mean(tf.square((tf.get_variable('offset', [1]) or 1.0) + scaled - y))


def drawn_by_numpy(batch):
    x, y = batch
    noise = np.random.standard_normal([1, 3]).astype(np.float32)
    w = tf.get_variable('w', initializer=np.random.standard_normal([3, 1]).astype(np.float32))
    return tf.reduce_mean(tf.square((x + noise) @ w * random.uniform(0.5, 2.0) - y))


def assigned_twice(batch):
    x, y = batch
    count = tf.get_variable('count', [], trainable=False, initializer=tf.zeros_initializer())
    with tf.control_dependencies([count.assign_add(1.0)]):
        first = count.read_value()
    with tf.control_dependencies([first]):
        added = count.assign_add(0.5)
    with tf.control_dependencies([added]):
        second = count.read_value()
    return tf.reduce_mean(tf.square(x @ tf.get_variable('w', [3, 1]) * first / second - y))


def minimised(loss_of, **options):
    def step(batch):
        loss = loss_of(batch)
        return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, tf.train.get_global_step(), **options)
    return step


@pytest.mark.parametrize('mode, towers', mostly_stress(LAYOUTS, ('replicated', 2)))
@pytest.mark.parametrize('loss_of, written_for_today', [
    (summed_in_place, summed), (drawn_by_numpy, drawn_by_numpy), (assigned_twice, assigned_twice)])
def test_a_step_sums_draws_and_assigns_as_in_tensorflow_1(loss_of, written_for_today, mode, towers, capsys):
    np.random.seed(1)
    random.seed(1)
    before, expected = plain(minimised(written_for_today), batch=(X, Y))
    following = np.random.random(), random.random()
    np.random.seed(1)
    random.seed(1)
    found = on_them(minimised(loss_of), batch=(X, Y), before=before, mode=mode, towers=towers)
    assert_equal(found, expected, towers)
    assert (np.random.random(), random.random()) == following
    assert capsys.readouterr().out == ''


def with_its_gradient(batch):
    w = tf.get_variable('w', [3, 1])
    loss = tf.reduce_mean(tf.square(batch[0] @ w - batch[1]))
    return loss + 0.1 * tf.reduce_sum(tf.square(tf.gradients(loss, [w])[0]))


def test_gradients_of_gradients_are_averaged_once_at_the_end():
    batch = np.tile(X[:4], [2, 1]), np.tile(Y[:4], [2, 1])  # this loss is not a mean, so towers must be equal
    before, expected = plain(minimised(with_its_gradient), batch=batch)
    found = on_them(minimised(with_its_gradient), batch=batch, before=before, mode='replicated', towers=2)
    assert_equal(found, expected, 2)


def normalised_in_vain(batch):
    mean = tf.get_variable('mean', [3], initializer=tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign(tf.reduce_mean(batch[0], 0)))
    return tf.reduce_mean(tf.square(batch[0] @ tf.get_variable('w', [3, 1])))


def kept_from_call_to_call(variables):  # some scripts share variables like this
    def loss_of(batch):
        if not variables:
            variables.append(tf.get_variable('w', [3, 1]))
        return tf.reduce_mean(tf.square(batch[0] @ variables[0] - batch[1]))
    return loss_of


def summed_later(batch):
    errors = tf.square(batch[0] @ tf.get_variable('w', [3, 1]) - batch[1])
    is_late = tf.train.get_or_create_global_step() > 1000
    return tf.where_v2(is_late, tf.reduce_sum(errors), tf.reduce_mean(errors))


def dropped(batch):
    return tf.reduce_mean(tf.nn.dropout(batch[0] @ tf.get_variable('w', [3, 1]), rate=0.5))


@pytest.mark.parametrize('loss_of, batch, fact', [
    (over_the_batch, (WORDS, MASK, Y), 'a mean over a mask'),
    (lambda batch: tf.reduce_sum(batch[0] @ tf.get_variable('w', [3, 1])), (X, Y), 'depends on how examples'),
    (summed_later, (X, Y), 'depends on how examples'), (normalised_in_vain, (X, Y), 'UPDATE_OPS'),
    (kept_from_call_to_call([]), (X, Y), 'keep no tensors between calls')])
def test_a_step_that_differs_on_several_towers_gets_a_warning(loss_of, batch, fact, capsys):
    with tf.Graph().as_default():
        on_towers(minimised(loss_of), halves(batch, 2), ['/cpu:0'])
    assert fact in capsys.readouterr().out


def test_a_step_with_dropout_prints_nothing(capsys):
    with tf.Graph().as_default():
        on_towers(minimised(dropped), halves((X, Y), 2), ['/cpu:0'])
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('second, error', [
    (lambda: (tf.ones([3, 3]), tf.ones([3, 1])), UsageError), (lambda: (tf.ones([5, 3]),), ValueError)])
def test_batches_with_different_structures_or_sizes_are_refused(second, error):
    with tf.Graph().as_default(), pytest.raises(error):
        on_towers(linear, [(tf.ones([5, 3]), tf.ones([5, 1])), second()], ['/cpu:0'])


def test_batches_of_unknown_size_are_compared_at_each_step():
    with tf.Graph().as_default(), session() as run:
        sizes = [tf.placeholder(tf.int32, []) for _ in range(2)]
        train_op, _ = on_towers(linear, [(tf.ones([size, 3]), tf.ones([size, 1])) for size in sizes], ['/cpu:0'])
        initialised(run)
        run.run(train_op, {sizes[0]: 4, sizes[1]: 4})
        with pytest.raises(tf.errors.InvalidArgumentError, match='differ in their number of examples'):
            run.run(train_op, {sizes[0]: 5, sizes[1]: 3})


SCRIPT = '''
import cifar10; cifar10.use_tensorflow_1()
import tensorflow as tf
import upstream
import numpy as np
train_op, loss = cifar10.on_towers(upstream.step, [tf.ones([4, 3])] * 2, ['/cpu:0'])
with tf.Session() as session:
    session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
    session.run(train_op)
    print('step', session.run(tf.train.get_global_step()), upstream.tf.estimator.ModeKeys.TRAIN)
'''
UPSTREAM = '''
import tensorflow as tf
class Descent(tf.train.Optimizer):
    def __init__(self):
        super(Descent, self).__init__(False, 'descent')
    def _resource_apply_dense(self, gradient, variable):
        return variable.assign_sub(0.1 * gradient)
def step(batch):
    assert batch.shape[0].value in (4, 8)
    loss = tf.reduce_mean(batch @ tf.get_variable('w', [3, 1]))
    return loss, Descent().minimize(loss, tf.train.get_global_step())
'''


def test_one_line_lets_a_script_import_files_of_tensorflow_1(tmp_path):
    (tmp_path / 'upstream.py').write_text(UPSTREAM)
    (tmp_path / 'script.py').write_text(SCRIPT)
    result = run_forked([sys.executable, str(tmp_path / 'script.py')])
    assert 'step 1 train' in result.stdout and 'non-resource variables' not in result.stderr
    assert 'use_tensorflow_1' in dir(cifar10)
