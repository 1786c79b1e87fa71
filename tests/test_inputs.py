"""Batches as a pure function of (seed, position), against stock tf.image operations and NumPy."""
import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.data import augment, datasets, draws, shift
from cifar10.data.images import ImageSource, eval_batches, loaded
from cifar10.model import network_draws
from cifar10.parallel import devices
from cifar10.run import checkpoints as of_run
from cifar10.run.folder import Folder
from cifar10.run.metrics import Log
from cifar10.run.takeover import TrainDir
from cifar10.training.run import Run
from tests import helpers
from tests.helpers import plan_of, update_mode, value_of

COUNT = 5000


def orders(seed, epochs, count=COUNT):
    """Returns the shuffled order of whole epochs, int64 [epochs, count]."""
    positions = tf.range(epochs * count, dtype=tf.int64)
    return value_of(draws.shuffled(positions, count, seed)).reshape(epochs, count)


def test_every_epoch_has_every_example_once():
    for order in orders(seed=3, epochs=4):
        np.testing.assert_array_equal(np.sort(order), np.arange(COUNT))


def test_epochs_and_seeds_are_independent():
    # With the operation's default of 4 rounds, consecutive epochs correlate at 0.6 to 0.75.
    shuffles = np.concatenate([orders(seed, epochs=6) for seed in (0, 1, 12345)])
    correlations = np.corrcoef(shuffles)[np.triu_indices(len(shuffles), 1)]
    assert np.abs(correlations).max() < 5 / np.sqrt(COUNT)


def test_batch_means_vary_like_those_of_random_batches():
    # Shuffles that are too even (4 rounds: 0.6 of the spread) make gradients look less noisy than they are.
    means = orders(seed=0, epochs=32).reshape(-1, 100).mean(1)
    expected = COUNT / np.sqrt(12 * 100)
    assert 0.9 < means.std() / expected < 1.1


def test_draws_for_a_position_do_not_depend_on_the_batch():
    whole, parts = value_of([draws.draws(tf.constant(1000, tf.int64), 64, 7),
                             [draws.draws(tf.constant(1000 + start, tf.int64), 16, 7) for start in (0, 16, 32, 48)]])
    np.testing.assert_array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, value_of(draws.draws(tf.constant(1000, tf.int64), 64, 8)))


def test_draws_are_uniform_and_independent_of_the_networks_draws():
    first = tf.constant(0, tf.int64)
    with network_draws.at_position(0, first):
        of_network = [network_draws.uniform_like(tf.zeros([20000, 4])) for _ in range(6)]
    numbers = value_of(tf.concat([draws.draws(first, 20000, 0, block) for block in range(6)] + of_network, 1))
    np.testing.assert_allclose(numbers.mean(0), 0.5, atol=0.01)
    np.testing.assert_allclose(numbers.var(0), 1 / 12, atol=0.004)
    neighbours = np.concatenate([numbers[:-1], numbers[1:]], 1)
    assert np.abs(np.corrcoef(neighbours.T) - np.eye(96)).max() < 0.04


@pytest.fixture
def in_memory(data_dir):
    """Returns (session, variables, NumPy rows) of the test images."""
    data = datasets.prepare('shapes', data_dir, datasets.TEST)
    memory = loaded(data)
    with tf.Session() as session:
        session.run(memory.read)
        yield session, memory, np.fromfile(data.files[0], np.uint8).reshape(-1, 3073)


def pixels(rows):
    return rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32)


def test_records_are_read_exactly_as_stored(data_dir):
    data = datasets.prepare('shapes', data_dir)
    memory = loaded(data)
    with tf.Session() as session:
        session.run(memory.read)
        labels, images = session.run([memory.labels.read_value(), memory.pixels.read_value()])
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in data.files]).reshape(-1, 3073)
    np.testing.assert_array_equal(labels, rows[:, 0])
    np.testing.assert_array_equal(images, pixels(rows))


def test_augmentation_matches_stock_operations(in_memory, data_dir):
    session, memory, rows = in_memory
    first, n, seed = 190, 64, 5  # across the end of the first epoch
    images = datasets.prepare('shapes', data_dir, datasets.TEST)
    source = ImageSource(images, augment.Classic(None, None, seed), n, seed)
    images, labels = session.run(source.batch(memory, tf.constant(first, tf.int64), tf.constant(first, tf.int64)))
    examples, numbers = value_of([draws.shuffled(first + tf.range(n, dtype=tf.int64), len(rows), seed),
                                  draws.draws(tf.constant(first, tf.int64), n, seed)])
    np.testing.assert_array_equal(labels, rows[examples, 0])
    expected = []
    for image, (row, column, mirror, contrast) in zip(pixels(rows[examples]), numbers):
        top, left = int(row * 9), int(column * 9)
        crop = image[top:top + 24, left:left + 24]
        crop = crop[:, ::-1] if mirror < 0.5 else crop
        # The classic recipe also shifts the brightness, which standardising cancels.
        stretched = tf.image.adjust_contrast(tf.constant(crop) + 41.0, 0.2 + 1.6 * contrast)
        expected.append(tf.image.per_image_standardization(stretched))
    np.testing.assert_allclose(images, value_of(tf.stack(expected)), atol=2e-5)
    crops = set(map(tuple, np.floor(numbers[:, :2] * 9).astype(int)))
    assert len(crops) > 40 and 16 < (numbers[:, 2] < 0.5).sum() < 48


def test_evaluation_uses_the_centre_of_each_example_once(in_memory):
    session, memory, rows = in_memory
    iterator, start = eval_batches(memory, augment.Classic(None, None, 0), 150, 45)
    batch = iterator.get_next()
    session.run(start)
    images, labels = map(np.concatenate, zip(*[session.run(batch) for _ in range(4)]))
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run(batch)
    np.testing.assert_array_equal(labels, rows[:150, 0])
    expected = value_of(tf.image.per_image_standardization(pixels(rows[:150])[:, 4:28, 4:28]))
    np.testing.assert_allclose(images, expected, atol=2e-5)


class Marked:
    """A data set whose images remain identifiable after any crop, mirroring and standardisation.

    Each image has one colour: one channel is 0, one is 255, and one is k. The order of the channels, k and the label
    identify it.
    """
    ORDERS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    LEVELS = 100

    def __init__(self, count):
        index = np.arange(count)
        self.labels = index % 10
        images = np.zeros([count, 3, 32, 32], np.uint8)
        for i in index:
            _, middle, high = self.ORDERS[i // 10 % 6]
            images[i, middle], images[i, high] = 20 + 2 * (i // 60), 255
        assert count <= 60 * self.LEVELS
        self.images = images

    def identify(self, images, labels):
        """Returns the indices of a batch's examples."""
        colours = images[:, 0, 0]
        low, middle, high = np.sort(colours, 1).T
        levels = np.rint(((middle - low) / (high - low) * 255 - 20) / 2).astype(int)
        ranks = [self.ORDERS.index(tuple(order)) for order in np.argsort(colours, 1)]
        return levels * 60 + np.array(ranks) * 10 + labels


def consumed(config, steps, directory):
    """Runs the training graph, resuming from `directory`; returns the examples of each step and tower."""
    marked = Marked(COUNT)
    with tf.Graph().as_default():
        cpus = devices.choose(config.towers.num_gpus, 'cpu')
        update = update_mode(config.towers.variable_update, cpus)
        run = Run(plan_of(config, datasets.prepare('shapes', config.data.data_dir), cpus, update))
        with run.adding():
            checkpoints = of_run.Checkpoints(TrainDir(directory), None, Folder(directory), 5, Log(directory))
        taken = []
        with run.opened(checkpoints.resume()):
            for _ in range(steps):
                batches = run.take(dict(batches=run.graph.batches))['batches']
                taken.append([marked.identify(images, labels) for (images, labels), _ in batches])
            checkpoints.save(run.session)
    return np.array(taken)


def test_towers_batches_and_draw_positions_match_one_large_tower(settings):
    found = []
    for towers, size in ((3, 4), (1, 12)):
        given, cpu = settings(num_towers=towers, batch_size=size), devices.choose(1, 'cpu').with_towers(towers)
        run = Run(plan_of(given, datasets.find(given.data).images(), cpu, update_mode('parameter_server', cpu)))
        with run.opened():
            batches = run.session.run(run.graph.batches)
        found.append({distance + i: label for (_, labels), distance in batches for i, label in enumerate(labels)})
    assert found[0] == found[1] and len(found[0]) == 12


def test_no_example_repeats_within_an_epoch_across_towers_and_a_resume(settings, tmp_path):
    marked = Marked(COUNT)
    helpers.write_records(tmp_path / 'marked', marked.labels, marked.images)
    common = dict(data_dir=str(tmp_path / 'marked'), max_steps=100)
    (tmp_path / 'run').mkdir()
    first = consumed(settings(num_gpus=2, batch_size=64, **common), 20, str(tmp_path / 'run'))
    second = consumed(settings(num_gpus=1, batch_size=64, **common), 39, str(tmp_path / 'run'))
    taken = np.concatenate([first.ravel(), second.ravel()])
    np.testing.assert_array_equal(np.sort(taken[:COUNT]), np.arange(COUNT))
    assert len(taken) > COUNT
    # One tower would take the same positions in the same order.
    np.testing.assert_array_equal(taken, orders(seed=0, epochs=2).ravel()[:len(taken)])


@pytest.fixture
def shifted(data_dir):
    """A function that returns a batch of the shift augmentation: normalised images [n, h, w, 3], labels."""
    data = datasets.prepare('shapes', data_dir, datasets.TEST)
    memory = loaded(data)

    def make(first, n, sizes=((0.0, 32),), step=None, seed=5):
        source = ImageSource(data, shift.Shift(sizes, 10000, seed), n, seed)
        first = tf.constant(first, tf.int64)
        batch = source.batch(memory, first, first if step is None else tf.constant(step, tf.int64))
        with tf.Session() as session:
            session.run(memory.read)
            return session.run(batch)
    return make


def normalised(rows):
    return (pixels(rows) - (125.3, 123.0, 113.9)) / (63.0, 62.1, 66.7)


def test_images_are_shifted_with_reflection_and_half_of_them_mirrored(shifted, data_dir):
    rows = np.fromfile(datasets.prepare('shapes', data_dir, datasets.TEST).files[0], np.uint8).reshape(-1, 3073)
    n = 100
    images, labels = shifted(0, n)
    examples = value_of(draws.shuffled(tf.range(n, dtype=tf.int64), len(rows), 5))
    np.testing.assert_array_equal(labels, rows[examples, 0])
    padded = np.pad(normalised(rows[examples]), [(0, 0), (2, 2), (2, 2), (0, 0)], 'reflect')
    shifts, mirrored = set(), []
    for image, around in zip(images, padded):
        fits = [(row, column, flip) for row in range(5) for column in range(5) for flip in (False, True)
                if np.allclose(image, around[row:row + 32, column:column + 32][:, ::-1 if flip else 1], atol=1e-4)]
        assert fits, 'neither shifted nor mirrored'
        if len(fits) == 1:
            shifts.add(fits[0][:2])
            mirrored.append(fits[0][2])
    assert len(shifts) > 15 and 0.3 < np.mean(mirrored) < 0.7


def test_every_example_is_mirrored_in_every_other_epoch(data_dir):
    positions = augment.Positions(tf.constant(0, tf.int64), tf.constant(0, tf.int64),
                                  tf.tile(tf.range(50, dtype=tf.int64), [3]),
                                  tf.repeat(tf.range(3, dtype=tf.int64), 50), 50)
    # A black image with a white left half shows whether it was mirrored.
    halves = np.zeros([150, 32, 32, 3], np.uint8)
    halves[:, :, :16] = 255
    images = value_of(shift.Shift([(0.0, 32)], None, 3)(tf.constant(halves), positions))
    turned = (images[:, 16, 0, 0] < 0).reshape(3, 50)
    assert 0 < turned[0].sum() == 25
    np.testing.assert_array_equal(turned[1], ~turned[0])
    np.testing.assert_array_equal(turned[2], turned[0])


def test_the_size_follows_the_position_of_the_step(shifted):
    sizes = ((0.0, 16), (0.3, 24), (0.6, 32))
    for step, expected in ((0, 16), (2999, 16), (3000, 24), (12000, 32)):
        assert shifted(step + 8, 8, sizes, step)[0].shape == (8, expected, expected, 3)
    # All towers of a step use one size, even if the size changes between two of their batches.
    assert shifted(3000, 8, sizes, step=2992)[0].shape[1] == 16


def test_a_shifted_batch_is_a_function_of_its_positions(shifted):
    whole, labels = shifted(190, 32, ((0.0, 24),))
    parts = [shifted(190 + start, 16, ((0.0, 24),), step=190) for start in (0, 16)]  # two towers' batches
    np.testing.assert_array_equal(whole, np.concatenate([images for images, _ in parts]))
    np.testing.assert_array_equal(labels, np.concatenate([part for _, part in parts]))
    assert not np.array_equal(whole, shifted(190, 32, ((0.0, 24),), seed=6)[0])
