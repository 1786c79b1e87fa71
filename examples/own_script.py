"""Your own training script on several devices: a text classifier with an embedding, clipping and Adam.

    python examples/own_script.py --devices=4

The script has its own tf.data input, session and loop. `cifar10.on_towers` runs its step on several devices; the
trained variables are the same as on one device, up to rounding.
"""
import argparse
import sys

try:
    import numpy as np
    import tensorflow.compat.v1 as tf

    import cifar10
except ModuleNotFoundError as error:
    print(f'own_script.py: error: {sys.executable} has no {error.name}; activate the environment in which you '
          'installed this program: source .venv/bin/activate', file=sys.stderr)
    sys.exit(2)

WORDS, LENGTH, CLASSES = 1000, 12, 4
BATCH = 64  # examples of all towers


def sentences(count, seed=0):
    """Returns generated sentences, int32 [count, LENGTH], and their topics, int32 [count].

    A third of the words are specific to the topic, and the remaining words are common to all topics.
    """
    random = np.random.default_rng(seed)
    topics = random.integers(0, CLASSES, count)
    common = random.integers(CLASSES * 100, WORDS, [count, LENGTH])
    own = topics[:, None] * 100 + random.integers(0, 100, [count, LENGTH])
    return np.where(random.random([count, LENGTH]) < 1 / 3, own, common).astype(np.int32), topics.astype(np.int32)


def classified(words):
    """Returns the logits of sentences."""
    table = tf.get_variable('table', [WORDS, 16], initializer=tf.random_normal_initializer(stddev=0.1, seed=1))
    mean = tf.reduce_mean(tf.nn.embedding_lookup(table, words), 1)
    hidden = tf.nn.relu(mean @ tf.get_variable('hidden', [16, 32], initializer=tf.glorot_uniform_initializer(seed=2)))
    return hidden @ tf.get_variable('logits', [32, CLASSES], initializer=tf.glorot_uniform_initializer(seed=3))


def step(batch):
    """Returns (loss, train_op): an ordinary TensorFlow 1 step for one device."""
    loss = tf.losses.sparse_softmax_cross_entropy(batch['topics'], classified(batch['words']))
    optimizer = tf.train.AdamOptimizer(0.01)
    gradients, variables = zip(*optimizer.compute_gradients(loss))
    gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
    return loss, optimizer.apply_gradients(zip(gradients, variables), tf.train.get_or_create_global_step())


def parts_of(batch, count):
    """Returns the parts of a batch, one for each tower."""
    split = {name: tf.split(tensor, count) for name, tensor in batch.items()}
    return [{name: tensors[k] for name, tensors in split.items()} for k in range(count)]


def train(num_devices, steps, variable_update='parameter_server'):
    """Trains on several devices; returns (loss of the last step, accuracy on new sentences, variables)."""
    with tf.Graph().as_default():
        words, topics = sentences(4096)
        data = tf.data.Dataset.from_tensor_slices(dict(words=words, topics=topics)).repeat()
        batch = tf.data.make_one_shot_iterator(data.batch(BATCH, drop_remainder=True)).get_next()

        kind = 'gpu' if tf.config.list_physical_devices('GPU') else 'cpu'
        devices = [f'/{kind}:{k}' for k in range(num_devices)]
        train_op, loss = cifar10.on_towers(step, parts_of(batch, num_devices), devices, variable_update)

        new_words, new_topics = sentences(1000, seed=1)
        with tf.variable_scope(tf.get_variable_scope(), reuse=True):
            predicted = tf.argmax(classified(tf.constant(new_words)), 1)
        begin = tf.global_variables_initializer(), tf.local_variables_initializer()
        config = tf.ConfigProto(device_count={'CPU': num_devices}, allow_soft_placement=True)
        with tf.Session(config=config) as session:
            for operation in begin:
                session.run(operation)
            for _ in range(steps):
                _, last = session.run([train_op, loss])
            accuracy = np.mean(session.run(predicted) == new_topics)
            return last, accuracy, session.run({variable.op.name: variable for variable in tf.trainable_variables()})


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--devices', type=int, default=1, help='number of GPUs, or of CPU devices without GPUs')
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--variable_update', default='parameter_server', choices=['parameter_server', 'replicated'])
    args = parser.parse_args()
    tf.disable_v2_behavior()
    final_loss, test_accuracy, _ = train(args.devices, args.steps, args.variable_update)
    print(f'{args.steps} steps on {args.devices} devices: loss {final_loss:.3f}, accuracy {test_accuracy:.3f} on new '
          'sentences')
