"""Whole models that have no right answer on several towers, or that need something the program does not do."""
import tensorflow.compat.v1 as tf
import tf_slim

from tests.whole_models import cross_entropy, network


def _spec(loss, train_op, **options):
    return tf.estimator.EstimatorSpec('train', loss=loss, train_op=train_op, **options)


def _step():
    return tf.train.get_global_step()


def reads_activations(features, labels, mode):
    logits = network(features)
    loss = cross_entropy(labels, logits)
    scale = tf.reduce_max(logits, 0)  # of each class, so it is no scalar  # line
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = [(gradient * tf.reduce_sum(scale * scale) if gradient.shape.rank == 1 else gradient, variable)
             for gradient, variable in optimizer.compute_gradients(loss)]
    pairs = [(gradient * scale if gradient.shape.rank == 1 else gradient, variable) for gradient, variable in pairs]
    return _spec(loss, optimizer.apply_gradients(pairs, _step()))


def gradient_in_a_branch(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    updated = tf.cond(loss > 0.0, lambda: optimizer.minimize(loss), tf.no_op)
    with tf.control_dependencies([updated]):
        return _spec(loss, tf.assign_add(_step(), 1))


def gradient_after_an_update(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    with tf.control_dependencies([optimizer.minimize(loss)]):
        filters = tf.trainable_variables()[0]
        other = tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(features, filters.read_value(), 2, 'SAME')))  # line
        return _spec(loss, optimizer.minimize(other, _step(), var_list=[filters]))


def gradients_of_single_images(features, labels, mode):
    logits = network(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, predictions=dict(logits=logits))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    variables = tf.trainable_variables()
    each = [tf.clip_by_global_norm(tf.gradients(loss, variables), 0.1)[0] for loss in tf.unstack(losses)]  # line
    pairs = [(tf.add_n(gradients) / 8, variable) for *gradients, variable in zip(*each, variables)]
    train_op = tf.train.GradientDescentOptimizer(0.1).apply_gradients(pairs, _step())
    return _spec(tf.reduce_mean(losses), train_op)


def a_function_of_the_loss(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    rate = 0.1 * tf.square(loss)  # line
    return _spec(loss, tf.train.GradientDescentOptimizer(rate).minimize(loss, _step()))


def measured_in_the_step(features, labels, mode):
    logits = network(features)
    loss, accuracy = cross_entropy(labels, logits), tf.metrics.accuracy(labels, tf.argmax(logits, 1))
    updated = tf.train.AdamOptimizer(0.01).minimize(loss, _step())
    return _spec(loss, tf.group(updated, accuracy[1]))


def unfed_with_a_default(features, labels, mode):
    rate = tf.placeholder_with_default(0.5, [])  # line
    loss = cross_entropy(labels, tf.nn.dropout(network(features), rate=rate))
    return _spec(loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step()))


def counted_in_a_branch(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    optimizer = tf.train.GradientDescentOptimizer(0.1)
    pairs = optimizer.compute_gradients(loss)
    is_finite = tf.reduce_all([tf.reduce_all(tf.is_finite(gradient)) for gradient, _ in pairs])
    return _spec(loss, tf.cond(  # line
        is_finite, lambda: tf.group(optimizer.apply_gradients(pairs, _step())), tf.no_op))


def synchronised_replicas(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(0.1), 2, total_num_replicas=2)
    return _spec(loss, optimizer.minimize(loss, _step()))  # line


class Hook(tf.train.SessionRunHook):
    """Sets a variable before each step."""


def hooks(features, labels, mode):
    logits = network(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, predictions=dict(logits=logits))
    loss = cross_entropy(labels, logits)
    restore = tf.train.Scaffold(init_fn=lambda scaffold, session: None)
    train_op = tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step())
    return _spec(loss, train_op, training_hooks=[Hook()], scaffold=restore)


def session(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())  # line
    return _spec(loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step()))


def no_gradient(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    return _spec(loss, tf.assign_add(_step(), 1))


def no_loss(features, labels, mode):
    loss = cross_entropy(labels, network(features))
    return tf.estimator.EstimatorSpec(mode, train_op=tf.train.AdamOptimizer().minimize(loss, _step()))


def _predicts(predictions_of):
    def model_fn(features, labels, mode):
        logits = network(features)
        if mode == 'infer':
            return tf.estimator.EstimatorSpec(mode, predictions=predictions_of(logits))
        loss = cross_entropy(labels, logits)
        return _spec(loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step()))
    return model_fn


no_predictions = _predicts(lambda logits: None)
classes_only = _predicts(lambda logits: dict(classes=tf.argmax(logits, 1)))


def fails_in_infer(features, labels, mode):
    logits = network(features)
    if mode == 'infer':
        raise KeyError('model_dir')
    loss = cross_entropy(labels, logits)
    return _spec(loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step()))


def an_estimator(features, labels, mode):
    config = tf.estimator.RunConfig(model_dir='/tmp')  # line
    return config


def needs_params(features, labels, mode, params):
    return params


def _summed(draws):
    def model_fn(features, labels, mode):
        logits = network(features)
        if mode == 'infer':
            return tf.estimator.EstimatorSpec(mode, predictions=dict(logits=logits))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        pairs = tf.train.GradientDescentOptimizer(0.1).compute_gradients(draws(losses))
        noisy = [(gradient + 0.1 * tf.random_normal(gradient.shape), variable) for gradient, variable in pairs]
        return _spec(draws(losses), tf.train.GradientDescentOptimizer(0.1).apply_gradients(noisy, _step()))
    return model_fn


sum_with_noise = _summed(tf.reduce_sum)
chosen = _summed(lambda losses: tf.reduce_sum(tf.gather(losses, tf.random_uniform([4], 0, 4, tf.int32))))


def some_images_behind_a_normalisation(features, labels, mode):
    logits = tf_slim.layers.batch_norm(network(features), is_training=mode == 'train')
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, predictions=dict(logits=logits))
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits, tf.cast(labels < 5, tf.float32))
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return _spec(loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss, _step()))


# {function: part of the warning}.
WARNED = dict(
    hooks='its training_hooks and scaffold',
    **dict.fromkeys(('no_predictions', 'classes_only', 'fails_in_infer'),
                    'does not classify images'),
    sum_with_noise='depends on how examples are divided', chosen='not compared',
    some_images_behind_a_normalisation='depends on how examples are divided')
# {function: part of the error}; if a line of the function is marked, the error names it.
REFUSED = dict(
    a_function_of_the_loss='the mean over the towers differs',
    measured_in_the_step='collections=, metrics in a train_op',
    unfed_with_a_default='which nothing feeds',
    reads_activations='which depends on the batch',
    gradient_in_a_branch='outside branches and loops',
    gradient_after_an_update='take all gradients before the first update',
    gradients_of_single_images='the number of its gradients depends',
    counted_in_a_branch='uses the global step, but neither reads it nor increments it by 1',
    synchronised_replicas='or a SyncReplicasOptimizer',
    session='it runs a session while the graph is built',
    no_gradient='no variable has a gradient',
    no_loss='its loss is None; return a float scalar',
    an_estimator='tf.estimator.RunConfig was removed from TensorFlow',
    needs_params="missing a required argument: 'params'")
