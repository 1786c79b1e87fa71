"""Network functions in the style of TensorFlow 1 scripts: losses, variables and random numbers.

Each is small; `test_idioms.py` has the expected results.
"""
import itertools

import numpy as np
import tensorflow.compat.v1 as tf
import tf_slim as slim

KEPT = {}
COUNT = itertools.count(1)
DRAWN_IN_THE_FILE = np.random.normal(0, 0.1, [3, 10]).astype('float32')
MASK = np.random.default_rng().normal(0, 0.1, [3]).astype('float32')
TEMPLATE = tf.make_template('template', lambda x, n: x @ tf.get_variable('w', [3, n]))


def _pooled(images):
    return tf.reduce_mean(images, [1, 2])


def _linear(x, n, name='w', **options):
    return x @ tf.get_variable(name, [x.shape[-1], n], **options)


def _hidden(images, name='k', **options):
    kernel = tf.get_variable(name, [3, 3, 3, 8], **options)
    return tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(images, kernel, 2, 'SAME')), [1, 2])


def _add_loss(value):
    tf.add_to_collection(tf.GraphKeys.LOSSES, tf.multiply(0.5, value, name='weight_loss'))


# Weight decay.

def over_trainable_variables(images, n, training):
    logits = _linear(_hidden(images), n)
    _add_loss(tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()]))
    return logits


def frozen_in_training_only(images, n, training):
    x = _hidden(images)
    if training:
        tf.get_collection_ref(tf.GraphKeys.TRAINABLE_VARIABLES).clear()
    return _linear(x, n)


def _l2(weights):
    return 0.1 * tf.nn.l2_loss(weights)


def regularizer_of_a_scope(images, n, training):
    with tf.variable_scope('net', regularizer=_l2):
        return _linear(_hidden(images), n) + tf.get_variable('b', [n], regularizer=lambda b: None)


def regularizer_of_a_shared_variable(images, n, training):
    with tf.variable_scope('net', regularizer=_l2, reuse=tf.AUTO_REUSE):
        return _linear(_pooled(images), n) + _linear(_pooled(images[:, :12]), n)


def regularizers_summed(images, n, training):
    logits = _linear(_hidden(images), n, regularizer=_l2)
    _add_loss(2.0 * tf.losses.get_regularization_loss())  # half of the sum is added
    return logits


def ignored_losses(images, n, training):
    logits = _linear(_hidden(images), n)
    tf.add_to_collection('wd_losses', tf.nn.l2_loss(tf.trainable_variables()[0]))
    return logits


def regularizer_in_a_loop(images, n, training):
    def of_one(image):
        with tf.variable_scope('net', regularizer=_l2, reuse=tf.AUTO_REUSE):
            return _hidden(image[None])[0]
    return _linear(tf.map_fn(of_one, images), n)


# Layers, scopes and variables.

def batch_normalised(images, n, training):
    x = tf.nn.conv2d(images, tf.get_variable('k', [3, 3, 3, 8]), 2, 'SAME')
    from cifar10.model import batch_normalisation
    return _linear(tf.reduce_mean(tf.nn.relu(batch_normalisation(x, training)), [1, 2]), n)


def normalised_by_image(images, n, training):
    from cifar10.model import batch_normalisation
    x = tf.nn.relu(tf.nn.conv2d(images, tf.get_variable('k', [3, 3, 3, 8]), 2, 'SAME'))
    x = _linear(tf.reshape(x, [-1, 12 * 12 * 8]), 16, 'h')
    return _linear(tf.nn.relu(batch_normalisation(x, training)), n)


def batch_statistics(images, n, training):
    x = tf.nn.conv2d(images, tf.get_variable('k', [3, 3, 3, 8]), 2, 'SAME')
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    return _linear(tf.reduce_mean(tf.nn.relu((x - mean) * tf.rsqrt(variance + 1e-3)), [1, 2]), n)


def on_the_first_gpu(images, n, training):
    kernel = tf.get_variable('k', [3, 3, 3, 8])
    with tf.device('/gpu:0'):
        x = tf.nn.conv2d(images, kernel, 2, 'SAME')
    return _linear(tf.reduce_mean(tf.nn.relu(x), [1, 2]), n)


def loss_in_the_other_branch(images, n, training):
    x = _hidden(images)

    def other():
        _add_loss(tf.reduce_mean(x))
        return x
    return _linear(tf.cond(tf.constant(True), lambda: x, other), n)


def reused_from_here(images, n, training):
    first = _linear(_pooled(images), n)
    tf.get_variable_scope().reuse_variables()
    return first + tf.Variable(tf.ones([n]), name='scale') * _linear(_pooled(images[:, :12]), n)


def custom_getter(images, n, training):
    def normalised(getter, *args, **kwargs):
        return tf.nn.l2_normalize(getter(*args, **kwargs), 0)
    with tf.variable_scope('net', custom_getter=normalised):
        logits = _linear(_hidden(images), n)
    _add_loss(tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()]))
    return logits


def embedding(images, n, training):
    table = tf.get_variable('table', [16, n])
    rows = tf.cast(tf.clip_by_value(_pooled(images) * 4 + 8, 0, 15), tf.int32)
    return tf.reduce_sum(tf.nn.embedding_lookup(table, rows), 1)


def unused(images, n, training):
    tf.get_variable('unused', [5])
    return _linear(_pooled(images), n)


def begun_with_another_variable(images, n, training):
    x, first = _pooled(images), tf.Variable(tf.random_normal([3, n], stddev=0.35), name='first')
    return x @ first + tf.square(x) @ tf.Variable(first.initialized_value() * 0.2, name='second')


def made_in_a_loop(images, n, training):
    rows = tf.reshape(images, [-1, 24, 72])[:, :4]
    outputs, _ = tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(8), rows, dtype=tf.float32)
    return _linear(outputs[:, -1], n)


def begun_with_a_random_tensor(images, n, training):
    return _pooled(images) @ tf.get_variable('w', initializer=tf.truncated_normal([3, n], stddev=0.1))


def begun_with_the_images(images, n, training):
    mean = tf.reduce_mean(images)
    return _linear(_pooled(images), n) + tf.get_variable('b', initializer=lambda: mean * tf.ones([n]))


def _moving(name='moving'):
    return tf.get_variable(name, [3], initializer=tf.zeros_initializer(), trainable=False)


def moving_averages_in_a_group(images, n, training):
    x, mean, total = _pooled(images), _moving(), _moving('total')
    updates = [mean.assign(0.9 * mean + 0.1 * tf.reduce_mean(x, 0)), total.assign_add(tf.reduce_mean(x, 0)).op]
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.group(*updates))
    return _linear(x - mean, n)


def moving_average_in_place(images, n, training):
    x, mean = _pooled(images), _moving()
    if training:
        with tf.control_dependencies([tf.assign(mean, mean * 0.9 + tf.reduce_mean(x, 0) * 0.1)]):
            return _linear(x + 0.0, n)
    return _linear(x - mean, n)


def moving_average_that_is_collected(images, n, training):
    keys = [tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.MOVING_AVERAGE_VARIABLES]
    x, mean = _pooled(images), tf.get_variable('moving', [3], trainable=False, collections=keys)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(mean, 0.9 * mean + 0.1 * tf.reduce_mean(x, 0)))
    return _linear(x - mean, n)


def exponential_moving_average(images, n, training):
    with tf.variable_scope('layer'):
        x = _pooled(images)
        batch_mean, average = tf.reduce_mean(x, 0, name='batch_mean'), tf.train.ExponentialMovingAverage(0.9)
        update = average.apply([batch_mean])
        if not training:
            return _linear(x - average.average(batch_mean), n)
        with tf.control_dependencies([update]):
            return _linear(tf.identity(x), n)


def averages_of_weights(images, n, training, name='average'):
    x, weights = _hidden(images), tf.get_variable('w', [8, n])
    average = tf.train.ExponentialMovingAverage(0.9, name=name)
    with tf.control_dependencies([average.apply([weights])]):
        return tf.matmul(x, weights if training else average.average(weights))


def averages_of_weights_named_as_here(images, n, training):
    return averages_of_weights(images, n, training, 'ExponentialMovingAverage')


def counter(images, n, training):
    count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, 1))
    return _linear(_pooled(images), n) * tf.cast(1 + count % 2, tf.float32)


def variables_by_hand(images, n, training):
    with tf.name_scope('first'):
        kernel = tf.Variable(tf.truncated_normal([3, 3, 3, 8], stddev=0.1), name='weights')
        x = tf.nn.relu(tf.nn.conv2d(images, kernel, 2, 'SAME') + tf.Variable(tf.constant(0.1, shape=[8])))
    with tf.variable_scope('second'):
        weights = tf.Variable(np.full([8, n], 0.1, 'float32'), name='weights')
    logits = tf.reduce_mean(x, [1, 2]) @ weights + tf.Variable(lambda: tf.zeros([n]), name='biases')
    _add_loss(tf.nn.l2_loss(weights))
    return logits


def variables_without_names(images, n, training):
    count = tf.Variable(0, name='global_step', trainable=False)
    scale = tf.cast(count + 1, tf.float32)
    return scale * tf.matmul(_pooled(images), tf.Variable(tf.ones([3, n]))) + tf.Variable(tf.zeros([n]))


def named_as_an_operation(images, n, training):
    x = tf.nn.conv2d(images, tf.get_variable('kernel', [3, 3, 3, 8]), 2, 'SAME')
    x = tf.nn.conv2d(x, tf.get_variable('conv2d', [3, 3, 8, 8]), 2, 'SAME')
    return _linear(tf.reduce_mean(x, [1, 2]), n, 'mean')


def moving_average_in_a_branch(images, n, training):
    x = _pooled(images)

    def by_batch():
        with tf.variable_scope('norm'):
            update = tf.assign_sub(_moving(), 0.1 * (_moving_again() - tf.reduce_mean(x, 0)))
        with tf.control_dependencies([update]):
            return tf.identity(x)

    def by_average():
        with tf.variable_scope('norm', reuse=True):
            return x - _moving()
    return _linear(tf.cond(tf.constant(training), by_batch, by_average), n)


def branches_that_are_lists(images, n, training):
    x, is_early = _pooled(images), tf.train.get_global_step() < 2
    once = tf.cond(is_early, lambda: [x], lambda: [2.0 * x])
    twice, = tf.cond(is_early, lambda: [once], lambda: [2.0 * once], strict=True)
    return _linear(twice, n)


def dropped_in_the_other_branch(images, n, training):
    x = _hidden(images)
    return _linear(tf.cond(tf.constant(False), fn1=lambda: tf.nn.dropout(x, 0.5), fn2=lambda: x), n)


def _moving_again():
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return _moving()


def assigned_in_vain(images, n, training):
    tf.assign(_moving(), tf.reduce_mean(_pooled(images), 0))
    return _linear(_pooled(images), n)


def read_after_it_is_assigned(images, n, training):
    x, mean = _pooled(images), _moving()
    with tf.control_dependencies([tf.assign(mean, tf.reduce_mean(x, 0))]):
        return _linear(x - mean.read_value(), n)


def centred_by_what_is_assigned(images, n, training):
    x, mean = _hidden(images), tf.get_variable('mean8', [8], initializer=tf.zeros_initializer(), trainable=False)
    return _linear(x - tf.assign(mean, 0.5 * mean + 0.5 * tf.reduce_mean(x, 0)) if training else x - mean, n)


def regularizer_that_is_printed(images, n, training):
    logits = _linear(_pooled(images), n, regularizer=_l2)
    with tf.control_dependencies([tf.debugging.check_numerics(tf.losses.get_regularization_loss(), 'penalty')]):
        return tf.identity(logits)


def counter_set_twice(images, n, training):
    count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer(), trainable=False)
    first = tf.assign(count, count + 2 ** 40)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(count, first + 1))
    return _linear(_pooled(images), n)


def counter_of_the_batch(images, n, training):
    count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, tf.shape(images, out_type=tf.int64)[0]))
    return _linear(_pooled(images), n)


def counter_of_images(images, n, training):
    count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer(), trainable=False)
    bright = tf.reduce_sum(tf.cast(_pooled(images) > 0, tf.int64))
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, bright))
    return _linear(_pooled(images), n)


def in_scopes_named_as_towers(images, n, training):
    x = _pooled(images)
    with tf.variable_scope('tower_0', reuse=tf.AUTO_REUSE):
        first = _linear(x, n)
    with tf.variable_scope('tower_1', reuse=tf.AUTO_REUSE):
        second = _linear(x, n)
    with tf.variable_scope('', reuse=tf.AUTO_REUSE):
        return first + 2.0 * second + 3.0 * _linear(x, n)


def read_after_it_is_assigned_in_an_update(images, n, training):
    x, mean, slow = _pooled(images), _moving(), _moving('slow')
    update = tf.assign(mean, tf.reduce_mean(x, 0))
    with tf.control_dependencies([update]):
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(slow, 0.9 * slow + 0.1 * mean))
    return _linear(x, n)


def read_in_a_loop_after_it_is_assigned(images, n, training):
    x, mean = _pooled(images), _moving()
    with tf.control_dependencies([tf.assign_add(mean, tf.ones([3]))]):
        _, x = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, x * mean), [0, x])
    return _linear(x, n)


def assigned_in_a_branch(images, n, training):
    x, mean = _pooled(images), _moving()
    update = tf.cond(tf.reduce_mean(x) > 0, lambda: tf.identity(tf.assign(mean, mean + 1)), lambda: tf.identity(mean))
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    return _linear(x, n)


def assigned_and_trained(images, n, training):
    logits = _linear(_pooled(images), n)
    weights = tf.trainable_variables()[0]
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(weights, tf.clip_by_norm(weights, 1.0)))
    return logits


def printed(images, n, training):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.print(tf.reduce_mean(images)))
    return _linear(_pooled(images), n)


def partitioned(images, n, training):
    with tf.variable_scope('net', partitioner=tf.fixed_size_partitioner(2)):
        return _linear(_hidden(images), n)


def not_resource_variables(images, n, training):
    with tf.variable_scope('net', use_resource=False):
        return _linear(_hidden(images, use_resource=False), n) + tf.Variable(tf.zeros([n]), use_resource=False)


def switched_by_a_variable(images, n, training):
    is_training = tf.get_variable('is_training', [], tf.bool, tf.ones_initializer(), trainable=False)
    x = _hidden(images)
    return _linear(tf.cond(is_training, lambda: 2.0 * x, lambda: x), n)


def of_a_known_number(images, n, training):
    count = int(images.shape[0])
    x = tf.reshape(images, images.get_shape())
    x = tf.debugging.check_numerics(x / tf.reduce_max(tf.abs(x), [1, 2, 3], keepdims=True), 'scaled')
    kernel = tf.get_variable('k', [3, 3, 3, 8])
    x = tf.squeeze(tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(x, kernel, 2, 'SAME')), [1, 2], keepdims=True))
    return _linear(tf.reshape(x, [count, 8]), n)


def halved(images, n, training):
    kernel = tf.get_variable('k', [3, 3, images.shape[-1] / 1, 16 / 2])
    return _linear(tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(images, kernel, 2, 'SAME')), [1, 2]), n)


def with_no_operation(images, n, training):
    for operation in tf.no_op(), tf.group():
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, operation)
    return _linear(_pooled(images), n)


def unbiased_average(images, n, training):
    average = tf.train.ExponentialMovingAverage(0.9, zero_debias=True)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, average.apply([tf.reduce_mean(images, [0, 1, 2], name='mean')]))
    return _linear(_pooled(images), n)


def made_twice(images, n, training):
    x = _pooled(images) * tf.Variable(1.0, name='net/w')
    with tf.variable_scope('net', reuse=tf.AUTO_REUSE):
        return _linear(x, n)


# Layers of libraries: tf.layers (from tf_keras), and slim.


def of_tf_layers_normalised(images, n, training):
    x = tf.layers.conv2d(images, 8, 3, 2, 'same', use_bias=False, kernel_regularizer=_l2)
    x = tf.nn.relu(tf.layers.batch_normalization(x, momentum=0.9, training=training))
    return tf.layers.dense(tf.layers.flatten(tf.layers.average_pooling2d(x, 4, 4)), n)


def of_slim_normalised_in_place(images, n, training):
    x, is_training = slim.conv2d(images, 8, 3, stride=2), tf.constant(training)
    with slim.arg_scope([slim.batch_norm], updates_collections=None, decay=0.9, scope='norm'):
        x = tf.cond(is_training, lambda: slim.batch_norm(x, is_training=is_training, reuse=None),
                    lambda: slim.batch_norm(x, is_training=is_training, reuse=True))
    return _linear(tf.reduce_mean(x, [1, 2]), n)


# Placeholders, fed by the function itself.

class _Fed:
    """A model as scripts write it, whose placeholders a script feeds."""

    def __init__(self, n):
        self.images = tf.placeholder(tf.float32, [None, 24, 24, 3])
        self.keep_prob = tf.placeholder_with_default(1.0, [])
        self.is_training = tf.placeholder(tf.bool, [])
        x = _pooled(self.images) * self.keep_prob
        self.logits = _linear(tf.cond(self.is_training, lambda: x + 0.5, lambda: x), n)


def fed(images, n, training):
    model = _Fed(n)
    return model.logits, {model.images: images, model.is_training: training, model.keep_prob: 0.5 if training else 1.0}


def of_slim_normalised_and_fed(images, n, training):
    is_training = tf.placeholder(tf.bool, [])
    with slim.arg_scope([slim.batch_norm, slim.dropout], is_training=is_training):
        x = slim.batch_norm(slim.conv2d(images, 8, 3, stride=2), decay=0.9)
        x = slim.dropout(tf.reduce_mean(x, [1, 2]), 1.0)
    return _linear(x, n), {is_training: training}


def normalised_with_a_bias(images, n, training):
    x = tf.layers.conv2d(images, 16, 3, padding='same')
    mean = tf.get_variable('mean', [16], initializer=tf.zeros_initializer(), trainable=False)
    by_batch, variance = tf.nn.moments(x, [0, 1, 2]) if training else (mean, 1.0)
    if training:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(mean, 0.1 * (mean - by_batch)))
    x = tf.nn.relu(tf.nn.batch_normalization(x, by_batch, variance, None, None, 1e-5))
    return tf.layers.dense(tf.reduce_mean(x, [1, 2]), n)


def with_an_optimizer(images, n, training):
    logits = _linear(_pooled(images), n)
    tf.train.AdamOptimizer().minimize(tf.reduce_mean(logits))
    return logits


# State that one call leaves for the next.

def only_first(images, n, training):
    logits = _linear(_pooled(images), n)
    return logits if tf.get_variable_scope().reuse else logits + tf.get_variable('more', [n])


def kept_variable(images, n, training):
    variables = KEPT.setdefault(tf.get_default_graph(), {})
    if 'w' not in variables:
        variables['w'] = tf.get_variable('w', [3, n])
    return _pooled(images) @ variables['w']


def counted_names(images, n, training):
    return _linear(_pooled(images), n, f'w{next(COUNT)}')


def template_of_the_file(images, n, training):
    return TEMPLATE(_pooled(images), n)


# Random numbers and initial values.

def drawn_in_the_function(images, n, training):
    initial = np.random.normal(0, 0.1, [3, n]).astype('float32')
    return _pooled(images) @ tf.get_variable('w', initializer=initial)


def drawn_in_the_file(images, n, training):
    return _pooled(images) @ tf.get_variable('w', initializer=tf.constant_initializer(DRAWN_IN_THE_FILE), shape=[3, n])


def dropped(images, n, training):
    from cifar10.model import dropout
    return _linear(dropout(_hidden(images), 0.4, training), n)


def runs_a_session(images, n, training):
    logits = _linear(_pooled(images), n)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
    return logits


def runs_a_session_of_its_own(images, n, training):
    with tf.Graph().as_default(), tf.Session() as session:
        initial = session.run(tf.random.stateless_normal([3, n], [0, 0]))
    return _pooled(images) @ tf.get_variable('w', initializer=initial)


def drawn_in_training_only(images, n, training):
    x = _pooled(images)
    if training:
        x += MASK
    return _linear(x, n)


# Losses and assignments that depend on the division of the examples.


def summed_by_a_small_change(images, n, training):
    x, centre = _hidden(images), tf.get_variable('centre', [8], trainable=False)
    _add_loss(tf.reduce_mean(tf.square(x - centre)))
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(centre, 0.001 * tf.reduce_sum(centre - x, 0)))
    return _linear(x, n)


def chosen_beside_a_counter(images, n, training):
    count = tf.get_variable('count', [], tf.int64, tf.zeros_initializer(), trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_add(count, 1))
    logits = _linear(_hidden(images), n)
    hard, _ = tf.nn.top_k(tf.reduce_max(logits, 1), int(images.shape[0]) // 2 if training else 1)
    _add_loss(tf.reduce_mean(hard))
    return logits


def summed_beside_dropout_and_statistics(images, n, training):
    from cifar10.model import batch_normalisation, dropout
    x = batch_normalisation(dropout(_hidden(images), 0.4, training), training)
    _add_loss(1e-2 * tf.nn.l2_loss(tf.nn.relu(x)))
    return _linear(x, n)


def queued(images, n, training):
    x, count = _pooled(images), tf.shape(images)[0]
    queue = tf.get_variable('queue', [16, 3], trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign(queue, tf.concat([queue[count:], x], 0)))
    return _linear(x, n)


def less_the_first(images, n, training):
    x = _hidden(images)
    return _linear(x - x[:1] if training else x, n)


def failing_on_noise(images, n, training):
    x = _hidden(images)
    with tf.control_dependencies([tf.debugging.assert_less(tf.abs(tf.reduce_mean(images)), 1e-6)]):
        return _linear(tf.identity(x), n)


def summed_up_in_evaluation(images, n, training):
    x = _hidden(images)
    return _linear(x if training else tf.cumsum(x, 0), n)


def averaged_activity(images, n, training):
    x = _hidden(images)
    _add_loss(tf.reduce_mean(tf.square(x)))
    return _linear(x, n)


def activations_of_all_kinds(images, n, training):
    x = _hidden(images)
    for entry in tf.identity(x, 'layer/x'), tf.argmax(x, 1), tf.reduce_mean(x), ('x', x):
        tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, entry)
    return _linear(x, n)


def placeholder_that_nothing_needs(images, n, training):
    tf.placeholder(tf.bool)
    return _linear(_hidden(images), n)


