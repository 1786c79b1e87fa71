"""Whole models in the style of TensorFlow 1: each has its own loss and train_op, and does not know towers."""
import functools

import numpy as np
import tensorflow.compat.v1 as tf
import tf_slim

from cifar10.model import add_moving_statistic


def network(x, statistics=False):
    """A small network; returns logits."""
    h = tf.nn.conv2d(x, tf.get_variable('filters', [3, 3, 3, 8]), 2, 'SAME')
    if statistics:
        mean = tf.get_variable('mean', [8], initializer=tf.zeros_initializer(), trainable=False)
        of_batch = tf.reduce_mean(h, [0, 1, 2])
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, mean.assign_sub(0.1 * (mean - of_batch)))
    h = tf.reduce_mean(tf.nn.relu(h), [1, 2])
    return h @ tf.get_variable('weights', [8, 10]) + tf.get_variable('biases', [10], initializer=tf.zeros_initializer())


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def model(**options):
    """Makes a model function from a function (loss) -> train_op."""
    def decorated(train):
        @functools.wraps(train)
        def model_fn(features, labels, mode):
            logits = network(features, **{name: mode == 'train' for name in options})
            if mode == tf.estimator.ModeKeys.PREDICT:
                return tf.estimator.EstimatorSpec(mode, predictions=dict(logits=logits))
            loss = cross_entropy(labels, logits)
            return tf.estimator.EstimatorSpec(mode, dict(logits=logits), loss, train(loss))
        del model_fn.__wrapped__  # otherwise it would seem to have the arguments of `train`
        return model_fn
    return decorated


step_of = tf.train.get_global_step


@model()
def momentum(loss):
    rate = tf.train.piecewise_constant(step_of(), [2, 4], [0.1, 0.05, 0.01])
    tf.summary.scalar('rate', rate)
    return tf.train.MomentumOptimizer(rate, 0.9).minimize(loss, step_of())


@model()
def clipped_adam(loss):
    loss += 1e-3 * tf.add_n([tf.nn.l2_loss(each) for each in tf.trainable_variables()])
    optimizer = tf.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, norm = tf.clip_by_global_norm(gradients, 0.05)
    tf.summary.scalar('norm', norm)
    return optimizer.apply_gradients(zip(gradients, variables), step_of())


@model()
def by_hand(loss):
    """An update by hand, as in BERT's optimization.py."""
    variables, step, updates = tf.trainable_variables(), step_of(), []
    gradients, _ = tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)
    for gradient, variable in zip(gradients, variables):
        m, v = (tf.get_variable(f'{variable.op.name}/adam_{name}', variable.shape, initializer=tf.zeros_initializer(),
                                trainable=False) for name in 'mv')
        next_m = 0.9 * m + 0.1 * gradient
        next_v = 0.999 * v + 0.001 * tf.square(gradient)
        change = next_m / (tf.sqrt(next_v) + 1e-6) + 0.01 * variable
        updates += [variable.assign(variable - 0.01 * change), m.assign(next_m), v.assign(next_v)]
    return tf.group(*updates, step.assign(step + 1))


@model(statistics=True)
def averages_after_statistics_before(loss):
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        updated = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step_of())
    moving = tf.train.ExponentialMovingAverage(0.9, step_of())
    with tf.control_dependencies([updated]):
        return moving.apply(tf.trainable_variables())


def _mean_of(loss):
    """Returns the mean loss over all towers: the value of a variable that follows the loss."""
    followed = tf.get_variable('followed', [], initializer=tf.zeros_initializer(), trainable=False)
    with tf.control_dependencies([followed.assign(loss)]):
        return followed.read_value()


@model()
def accumulating(loss):
    optimizer, is_last = tf.train.GradientDescentOptimizer(0.1), tf.equal(step_of() % 2, 1)
    pairs = optimizer.compute_gradients(loss)
    sums = [tf.get_variable(f'{variable.op.name}/sum', variable.shape, initializer=tf.zeros_initializer(),
                            trainable=False) for _, variable in pairs]
    with tf.control_dependencies([each.assign_add(gradient) for each, (gradient, _) in zip(sums, pairs)]):
        updated = tf.cond(is_last, lambda: tf.group(optimizer.apply_gradients(
            [(each / 2, variable) for each, (_, variable) in zip(sums, pairs)])), tf.no_op)
        with tf.control_dependencies([updated]):
            cleared = tf.cond(is_last, lambda: tf.group(*[each.assign(tf.zeros_like(each)) for each in sums]), tf.no_op)
            with tf.control_dependencies([cleared]):
                return tf.assign_add(step_of(), 1)


@model()
def lookahead(loss):
    updated = tf.train.AdamOptimizer(0.01).minimize(loss, step_of())
    slow = [tf.get_variable(f'{each.op.name}/slow', initializer=each.initial_value, trainable=False)
            for each in tf.trainable_variables()]

    def synchronised():
        ops = []
        for fast, each in zip(tf.trainable_variables(), slow):
            with tf.control_dependencies([each.assign_add(0.5 * (fast - each))]):
                ops.append(fast.assign(each.read_value()))
        return tf.group(*ops)
    with tf.control_dependencies([updated]):
        update = tf.cond(tf.equal(tf.identity(step_of()) % 3, 0), synchronised, tf.no_op)
    with tf.control_dependencies([update]):
        return tf.identity(loss)


@model(statistics=True)
def of_slim(loss):
    return tf_slim.learning.create_train_op(loss, tf.train.GradientDescentOptimizer(0.1), clip_gradient_norm=0.1)


def gradient_penalty(features, labels, mode):
    logits = network(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    of_images, = tf.gradients(loss * tf.cast(tf.shape(features)[0], tf.float32), features)
    penalised = loss + 0.1 * tf.reduce_mean(tf.reduce_sum(tf.square(of_images), [1, 2, 3]))
    return tf.estimator.EstimatorSpec(mode, loss=penalised, train_op=tf.train.GradientDescentOptimizer(0.1).minimize(
        penalised, step_of()))


def infers_with_averages(features, labels, mode):
    """Creates the moving averages of the variables in each mode, and evaluates with them."""
    def average(getter, *arguments, **options):
        variable = getter(*arguments, **options)
        return moving.average(variable) or variable
    logits, moving = network(features), tf.train.ExponentialMovingAverage(0.9)
    averaging = moving.apply(tf.trainable_variables())
    if mode == 'infer':
        with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=average):
            return tf.estimator.EstimatorSpec(mode, dict(logits=network(features)))
    loss = cross_entropy(labels, logits)
    with tf.control_dependencies([averaging]):
        train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step_of())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


def auxiliary_head(features, labels, mode):
    h = tf.nn.relu(tf.nn.conv2d(features, tf.get_variable('filters', [3, 3, 3, 8]), 2, 'SAME'))
    logits = tf.layers.dense(tf.reduce_mean(h, [1, 2]), 10, name='main')
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    beside = tf.layers.dense(tf.reduce_max(h, [1, 2]), 10, name='auxiliary')
    loss = cross_entropy(labels, logits) + 0.4 * cross_entropy(labels, beside)
    metrics = dict(accuracy=tf.metrics.accuracy(labels, tf.argmax(logits, 1)))
    tf.summary.scalar('training_accuracy', metrics['accuracy'][1])  # the metric's variables are in no checkpoint
    train_op = tf.train.AdagradOptimizer(0.05).minimize(loss, step_of())
    return tf.estimator.EstimatorSpec(mode, dict(logits=logits), loss, train_op, eval_metric_ops=metrics)


def embedding(features, labels, mode):
    """An embedding. Some rows belong to several images and most to none; only used rows move."""
    rows = tf.cast(tf.abs(features[:, :3, 0, 0]) * 4.0, tf.int32)
    table = tf.get_variable('table', [40, 10])
    logits = tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1) + network(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    optimizer = tf.train.MomentumOptimizer(0.5, 0.9)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, _ = tf.clip_by_global_norm(gradients, 0.2)
    return tf.estimator.EstimatorSpec(
        mode, loss=loss, train_op=optimizer.apply_gradients(zip(gradients, variables), step_of()))


def of_tpu(features, labels, mode, params=None):
    """A model in the style of tpu/models, without a TPU."""
    logits = network(features)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(mode, dict(logits=logits)).as_estimator_spec()
    loss = cross_entropy(labels, logits)
    optimizer = tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True)
    if params:
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        train_op = optimizer.minimize(loss, tf.train.get_or_create_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op, host_call=None)


@model()
def counts_first(loss):
    """Statistics that are read before an assignment and between two, and statistics that follow the loss."""
    old = tf.get_variable('old', [], initializer=tf.ones_initializer(), trainable=False)
    best = tf.get_variable('best', [], initializer=tf.constant_initializer(9.0), trainable=False)
    waited = tf.get_variable('waited', [], tf.int32, initializer=tf.zeros_initializer(), trainable=False)
    before, mean = old.read_value(), _mean_of(loss)
    waiting = waited.assign(tf.where(mean < best, 0, waited + 1))
    with tf.control_dependencies([before, waiting]):
        first = old.assign(0.5 * before + 0.5 * mean)
        with tf.control_dependencies([first]):
            between = old.read_value()
            with tf.control_dependencies([between]):
                second = old.assign_add(0.01)
    with tf.control_dependencies([second, waiting]):
        improved = best.assign(tf.minimum(best, mean))
    rate = tf.where(mean > 2.0, 0.05, 0.01) * before * between * (1.0 + tf.cast(waiting, tf.float32))
    with tf.control_dependencies([improved, tf.assign_add(step_of(), 1)]):
        return tf.train.GradientDescentOptimizer(rate).minimize(loss)


@model()
def two_losses_of_float64(loss):
    exact = tf.reduce_mean(tf.cast(loss, tf.float64))
    scale = tf.get_variable('scale', [], tf.float64, tf.ones_initializer(), trainable=False)
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    of_scale = tf.train.GradientDescentOptimizer(tf.constant(0.01, tf.float64)).minimize(
        scale * scale * exact, var_list=[scale])
    first = optimizer.minimize(loss, var_list=tf.trainable_variables()[:2])
    second = optimizer.compute_gradients(0.1 * loss, tf.trainable_variables()[:2])
    with tf.control_dependencies([first]):
        return tf.group(of_scale, optimizer.apply_gradients(second, step_of()))


def assigned_after(features, labels, mode):
    """Assigns and summarises values from before the update after it; computes gradients with a tape."""
    with tf.GradientTape() as tape:
        logits = network(features)
        if mode == 'infer':
            return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
        loss = cross_entropy(labels, logits)
    variables = tf.trainable_variables()
    updated = tf.train.AdamOptimizer(0.01).apply_gradients(zip(tape.gradient(loss, variables), variables), step_of())
    mean = tf.get_variable('mean', [10], initializer=tf.zeros_initializer(), trainable=False)
    before = mean.read_value()
    with tf.control_dependencies([updated]):
        right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.float32))
        tf.summary.scalar('right', right)
        assigned = mean.assign(0.9 * before + 0.1 * tf.reduce_mean(logits, 0))
        with tf.control_dependencies([assigned]):
            return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.identity(loss))


def values_from_before(features, labels, mode):
    """The forward pass and the update share earlier reads: decoupled decay, an old copy, and a count."""
    weights = tf.get_variable('dense', [3, 10])
    count = tf.get_variable('count', [], initializer=tf.zeros_initializer(), trainable=False)
    old = tf.get_variable('old', [3, 10], initializer=tf.zeros_initializer(), trainable=False)
    value, number = weights.read_value(), count.read_value()
    with tf.control_dependencies([value]):
        logits = tf.reduce_mean(features, [1, 2]) @ value * (1.0 + 0.1 * number)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    updated = tf.train.AdamOptimizer(0.01).minimize(loss, step_of())
    with tf.control_dependencies([updated]):
        decayed = weights.assign_sub(0.1 * value)
        with tf.control_dependencies([decayed]):
            train_op = tf.group(old.assign(value), count.assign(number + 1.0))
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=train_op)


SEEN = []


def with_effects(features, labels, mode):
    """A train_op that depends on a print, an assertion and Python code."""
    logits = network(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    seen = tf.py_func(lambda value: SEEN.append(float(value)) or np.float32(0), [loss], tf.float32)
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, step_of())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(
        train_op, seen, tf.Assert(loss < 100.0, [loss])))


def without_infer(features, labels, mode):
    """Supports the modes 'train' and 'eval' only; its integer variable is trainable by default."""
    logits = network(features)
    loss = cross_entropy(labels, logits)
    tf.metrics.mean(loss, name='mean_loss')
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits), loss)
    counter = tf.Variable(tf.zeros([], tf.int32), name='counter')
    with tf.control_dependencies([counter.assign_add(1)]):
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.train.AdamOptimizer(0.01).minimize(
            loss, step_of()))


def fed(features, labels, mode):
    """Feeds placeholders, like an adapter of a class."""
    keep = tf.placeholder_with_default(1.0, [], 'keep')
    spec = momentum(features * keep, labels, mode)
    return spec, {keep: 0.5 if mode == 'train' else 1.0}


def one_draw(features, labels, mode):
    """Uses draws that are the same for one tower and several."""
    from cifar10.model import dropout
    logits = network(dropout(features, 0.5, mode == 'train'))
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(logits=logits))
    loss = cross_entropy(labels, logits)
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.train.AdamOptimizer(0.01).minimize(loss, step_of()))


def with_a_statistic(features, labels, mode, moved=lambda mean, value: [mean.assign_add(0.25 * (value - mean))]):
    """A model with an unread statistic; `moved` returns its assignments for the update."""
    mean = tf.get_variable('mean', [3], initializer=tf.zeros_initializer(), trainable=False)
    moves = moved(mean, tf.reduce_mean(features, [0, 1, 2]))
    loss = cross_entropy(labels, network(features))
    updated = tf.train.GradientDescentOptimizer(0.1).minimize(loss, step_of())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=tf.group(updated, *moves))


def with_a_statistic_of_this_package(features, labels, mode):
    def moved(mean, value):
        add_moving_statistic(mean, value, 0.75)
        return []
    return with_a_statistic(features, labels, mode, moved)


def autoencoder(features, labels, mode):
    """A model without classes."""
    x = tf.layers.flatten(features[:, ::4, ::4])
    code = tf.layers.dense(x, 8, tf.nn.relu, name='encoder')
    decoded = tf.layers.dense(code, x.shape[-1], name='decoder')
    loss = tf.reduce_mean(tf.squared_difference(x, decoded))
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, step_of()) if mode == 'train' else None
    metrics = dict(error=tf.metrics.mean_squared_error(x, decoded)) if mode == 'eval' else None
    return tf.estimator.EstimatorSpec(mode, dict(decoded=decoded), None if mode == 'infer' else loss, train_op, metrics)


TRAINED = [momentum, clipped_adam, by_hand, averages_after_statistics_before, accumulating, lookahead, of_slim,
           gradient_penalty, infers_with_averages, auxiliary_head, embedding, assigned_after, counts_first,
           two_losses_of_float64, values_from_before, with_effects, without_infer, of_tpu]
TRAINED = [each.__name__ for each in TRAINED]
_RANDOM = np.random.default_rng(0)
IMAGES = _RANDOM.standard_normal([20, 24, 24, 3], np.float32)
LABELS = _RANDOM.integers(0, 10, 20, np.int32)
