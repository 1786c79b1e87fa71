"""Model functions and input functions in the style of users' Estimators, with features of any kind."""
import numpy as np
import tensorflow.compat.v1 as tf

EXAMPLES = {'train': 43, 'eval': 21, 'infer': 10}


def _random(mode):
    return np.random.default_rng(list(mode.encode()))


def prices(mode, batch_size):
    """Returns features with text, a number and a sparse list of text, and the price to predict from them."""
    random, count = _random(mode), EXAMPLES[mode]
    city = random.choice([b'Paris', b'Rome', b'Oslo'], count)
    rooms = random.integers(1, 6, count).astype(np.float32)
    tags = random.choice(['', 'garden', 'garden,sea', 'sea,lift,old'], count)
    price = rooms + 2 * (city == b'Rome') + np.char.count(tags, 'sea') + 0.1 * random.standard_normal(count)

    def features(city, rooms, tags, price):
        return dict(city=city, rooms=rooms, tags=tf.string_split([tags], ',')), price
    def of_batch(features, price):
        tags = features['tags']
        first, _, place = tf.unstack(tags.indices, axis=1)
        shape = tf.gather(tags.dense_shape, [0, 2])
        return dict(features, tags=tf.SparseTensor(tf.stack([first, place], 1), tags.values, shape)), price
    dataset = tf.data.Dataset.from_tensor_slices((city, rooms, tags, price.astype(np.float32)))
    if mode == 'train':
        dataset = dataset.shuffle(20, seed=5)
    dataset = dataset.map(features, 2).batch(batch_size).map(of_batch)
    return dataset if mode != 'infer' else dataset.map(lambda features, price: features)


def by_iterator(mode, batch_size):
    """Returns the same data from an iterator, as input functions without a data set do."""
    features, price = prices(mode, batch_size).make_one_shot_iterator().get_next()
    return {'city': features['city'], 'tags': features['tags'], 'rooms': features['rooms'] + 0.0}, price


def regression_of(features):
    column = tf.feature_column
    city = column.categorical_column_with_vocabulary_list('city', ['Paris', 'Rome'], num_oov_buckets=1)
    tags = column.categorical_column_with_hash_bucket('tags', 20)
    inputs = column.input_layer(features, [
        column.numeric_column('rooms'), column.indicator_column(city), column.embedding_column(tags, 3, 'sum')])
    return inputs, tf.squeeze(inputs @ tf.get_variable('w', [inputs.shape[1], 1]), 1) + tf.get_variable(
        'bias', [], initializer=tf.zeros_initializer())


def regression(features, labels, mode):
    inputs, found = regression_of(features)
    predictions = dict(price=found, inputs=inputs)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.losses.mean_squared_error(labels, found)
    metrics = dict(error=tf.metrics.mean_absolute_error(labels, found),
                   rmse=tf.metrics.root_mean_squared_error(labels, found))
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        train_op = tf.train.AdagradOptimizer(0.1).minimize(loss, tf.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, predictions, loss, train_op, metrics)


def points(mode, batch_size):
    """Returns points of a line in space, without labels."""
    along = _random(mode).standard_normal([EXAMPLES[mode], 1]).astype(np.float32)
    return tf.data.Dataset.from_tensor_slices(along @ np.float32([[1, 2, -1, 0.5]])).batch(batch_size)


def autoencoder(features, labels, mode, params=None):
    """An autoencoder in the style of tpu/models."""
    assert labels is None
    code = features @ tf.get_variable('encoder', [4, 1])
    found = code @ tf.get_variable('decoder', [1, 4])
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.tpu.TPUEstimatorSpec(mode, dict(code=code, found=found))
    loss = tf.reduce_mean(tf.square(found - features))
    if mode == tf.estimator.ModeKeys.EVAL:
        return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(
            lambda true, found: dict(error=tf.metrics.mean_squared_error(true, found)), [features, found]))
    train_op = tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_global_step())
    return tf.estimator.tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op, scaffold_fn=None)


def sentences(mode, batch_size):
    """Returns sentences, as word numbers, in ragged batches without labels."""
    random = _random(mode)
    lengths = random.integers(3, 9, EXAMPLES[mode])
    words = (np.arange(sum(lengths)) * 3 + random.integers(0, 2, sum(lengths))) % 11
    dataset = tf.data.Dataset.from_tensor_slices(tf.RaggedTensor.from_row_lengths(words, lengths))
    if mode == 'train':
        dataset = dataset.shuffle(8)  # the seed of the graph makes it repeat
    return dataset.batch(batch_size)


def words_of(features):
    """Returns words, the logits of the next words, and each word's loss and weight."""
    words = features.to_tensor()
    mask = tf.cast(tf.sequence_mask(features.row_lengths() - 1), tf.float32)
    states = tf.nn.embedding_lookup(tf.get_variable('words', [11, 6]), words[:, :-1])
    logits = tf.tensordot(tf.tanh(states), tf.get_variable('out', [6, 11]), 1)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=words[:, 1:], logits=logits) * mask
    return words, logits, tf.reduce_mean(tf.reduce_sum(losses, 1) / tf.reduce_sum(mask, 1)), mask


def language_model(features, labels, mode):
    """Predicts each word from the one before."""
    assert labels is None
    words, logits, loss, mask = words_of(features)
    if mode == 'infer':
        return tf.estimator.EstimatorSpec(mode, dict(next=tf.argmax(logits[:, 0], 1)))
    is_right = tf.equal(tf.argmax(logits, 2), words[:, 1:])
    return tf.estimator.EstimatorSpec(
        mode, None, loss, tf.train.AdamOptimizer(0.05).minimize(loss, tf.train.get_global_step()),
        dict(accuracy=tf.metrics.mean(tf.cast(is_right, tf.float32), mask)))


def not_batched(mode, batch_size):
    return tf.data.Dataset.from_tensor_slices((np.zeros([20, 3], np.float32), np.zeros(20, np.int64)))


def of_tensors(mode, batch_size):
    return tf.zeros([batch_size, 3])


def of_python(mode, batch_size):
    """Returns the data of `prices` from a Python function."""
    return prices(mode, batch_size).map(
        lambda features, price: (features, tf.ensure_shape(tf.py_func(lambda x: x, [price], tf.float32), [None])))
