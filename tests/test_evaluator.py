"""Evaluation and classification of a linear network against plain NumPy, including several views of an image."""
import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE
from cifar10.data import datasets
from cifar10.evaluation.classification import Classifier
from cifar10.evaluation.evaluator import Evaluator
from cifar10.evaluation.trained import Model, ModelSession
from cifar10.model.recipe import Recipe
from cifar10.parallel.devices import choose
from cifar10.run.record import RunRecord
from cifar10.settings.training import completed
from tests.helpers import mostly_stress, write_records

# A network built in training mode gets no prediction right.
LINEAR = '''
import tensorflow.compat.v1 as tf
def linear(images, num_classes, training):
    weights = tf.get_variable('weights', [32 * 32 * 3, num_classes])
    return tf.reshape(images, [-1, 32 * 32 * 3]) @ (-weights if training else weights)
'''


def softmax(logits):
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@dataclasses.dataclass
class Known:
    """Images uint8 [n, 32, 32, 3], weights, and NumPy's logits [6, n, 10] for each of six views."""
    recipe: Recipe
    images: np.ndarray
    weights: np.ndarray
    logits: np.ndarray

    @property
    def averaged(self):
        return np.average(self.logits, 0, [2, 1, 1, 2, 1, 1])


@pytest.fixture
def known(own):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, [60, 32, 32, 3], np.uint8)
    weights = rng.normal(0, 0.03, size=[3072, 10])
    padded = np.pad((images - (125.3, 123.0, 113.9)) / (63.0, 62.1, 66.7), [(0, 0), (1, 1), (1, 1), (0, 0)], 'reflect')
    views = [padded[:, 1:33, 1:33], padded[:, :32, :32], padded[:, 2:, 2:]]
    logits = np.stack([view.reshape(60, -1) @ weights for view in views + [view[:, :, ::-1] for view in views]])
    recipe = Recipe(completed(dict(network=own(LINEAR, 'linear'), augmentation='shift')).recipe, 10)
    return Known(recipe, images, weights.astype(np.float32), logits)


def test_an_evaluation_matches_numpy(known, tmp_path):
    count = 50
    plain = known.logits[0].argmax(1)
    averaged = known.averaged.argmax(1)
    labels = np.concatenate([plain[:20], averaged[20:35], np.arange(25) % 10])  # some predictions are correct
    write_records(tmp_path, labels, known.images.transpose(0, 3, 1, 2))
    data = datasets.prepare('shapes', str(tmp_path), datasets.TEST)
    evaluator = Evaluator(data, known.recipe, ['/cpu:0', '/cpu:1'], 8, count, True)
    with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
        session.run(evaluator.read)
        tf.trainable_variables()[0].load(known.weights, session)
        result = evaluator.run(session, 7)
        second_result = evaluator.run(session, 8)
    confusion = np.zeros([10, 10], int)
    np.add.at(confusion, (labels[:count], plain[:count]), 1)
    np.testing.assert_array_equal(result.confusion, confusion)
    correct = int((plain[:count] == labels[:count]).sum())
    averaged_correct = int((averaged[:count] == labels[:count]).sum())
    assert not np.array_equal(confusion, confusion.T) and 20 < correct != averaged_correct < count
    assert result.counts == dict(examples=count, correct=correct) and (result.step, second_result.step) == (7, 8)
    assert result.averaged_accuracy == averaged_correct / count
    losses = -np.log(softmax(known.logits[0]))[np.arange(count), labels[:count]]
    np.testing.assert_allclose(result.cross_entropy, losses.mean(), rtol=1e-5)
    assert second_result.figures == result.figures
    largest = np.argsort(-losses)[:16]
    for found in (result.predictions, second_result.predictions):
        assert [each.example for each in found] == list(largest)
        assert [each.name for each in found] == [f'{data.files[0]}, record {example}' for example in largest]
        assert [(each.label, each.predicted) for each in found] == list(zip(labels[largest], plain[largest]))
        np.testing.assert_allclose([each.loss for each in found], losses[largest], rtol=1e-5)
        for each in found:
            np.testing.assert_allclose(
                each.image, (known.images[each.example] - (125.3, 123.0, 113.9)) / (63.0, 62.1, 66.7), atol=1e-4)


# This is added to the logits of an image of one value.
ADDED = np.zeros([5, 10], np.float32)
ADDED[1], ADDED[2, 3], ADDED[3, 5], ADDED[4, 7] = np.nan, np.nan, np.inf, -np.inf
NOT_ALWAYS_FINITE = f'''
import numpy as np
import tensorflow.compat.v1 as tf
ADDED = np.array({ADDED.tolist()}, np.float32)
def linear(images, num_classes, training):
    weights = tf.get_variable('weights', [32 * 32 * 3, num_classes])
    red = images[:, :, :, 0]
    low, high = tf.reduce_min(red, [1, 2]), tf.reduce_max(red, [1, 2])
    value = tf.where(tf.equal(low, high), low * 63.0 + 125.3, tf.zeros_like(low))
    return tf.reshape(images, [-1, 32 * 32 * 3]) @ weights + tf.gather(ADDED, tf.cast(value / 50.0 + 0.5, tf.int32))
'''.replace('nan', 'np.nan').replace('inf', 'np.inf')


def test_nonfinite_predictions_are_wrong_and_listed_first(known, own, tmp_path):
    kinds = np.repeat(np.arange(5), [20, 2, 2, 2, 4])
    kinds = np.random.default_rng(1).permutation(kinds)
    count, rng = len(kinds), np.random.default_rng(2)
    images = np.where(kinds[:, None, None, None], np.uint8(50) * kinds.astype(np.uint8)[:, None, None, None],
                      known.images[:count])
    labels = rng.integers(0, 2, count) * 7  # `tf.argmax` of NaN is class 0; the loss of class 7 may be infinite
    labels[np.flatnonzero(kinds == 4)] = 0, 7, 7, 0
    write_records(tmp_path, labels, images.transpose(0, 3, 1, 2))
    data = datasets.prepare('shapes', str(tmp_path), datasets.TEST)
    recipe = Recipe(completed(dict(network=own(NOT_ALWAYS_FINITE, 'linear'), augmentation='shift')).recipe, 10)
    evaluator = Evaluator(data, recipe, ['/cpu:0', '/cpu:1'], 7, None, True)
    with tf.Session(config=tf.ConfigProto(device_count={'CPU': 2})) as session:
        session.run(evaluator.read)
        tf.trainable_variables()[0].load(known.weights, session)
        result = evaluator.run(session, 7)
    logits = ((images - (125.3, 123.0, 113.9)) / (63.0, 62.1, 66.7)).reshape(count, -1) @ known.weights + ADDED[kinds]
    is_finite = ~np.isin(kinds, [1, 2, 3])
    predicted = np.where(is_finite, np.where(np.isnan(logits), -np.inf, logits).argmax(1), 10)
    confusion = np.zeros([10, 11], int)
    np.add.at(confusion, (labels, predicted), 1)
    np.testing.assert_array_equal(result.confusion, confusion)
    assert result.counts == dict(examples=count, correct=(predicted == labels).sum(), not_finite=6)
    assert not np.isfinite(result.cross_entropy)
    averaged = np.where(kinds[:, None] == 0, known.averaged[:count], logits)  # all views of one value are equal
    assert result.averaged_accuracy == (is_finite & (averaged.argmax(1) == labels)).sum() / count
    assert f'6 predictions not finite, such as for {data.name_of(int(np.argmin(is_finite)))}' in result.line()
    is_impossible = (kinds == 4) & (labels == 7)  # an infinite loss, but finite probabilities
    expected = [*np.flatnonzero(~is_finite), *np.flatnonzero(is_impossible)]
    assert [each.example for each in result.predictions][:len(expected)] == expected
    listed = result.largest_losses
    assert [each['predicted'] is None for each in listed] == [True] * 6 + [False] * 10
    assert [each['probability'] for each in listed][:8] == [None] * 6 + [0.0] * 2


@pytest.mark.parametrize('averaging', mostly_stress([False, True], True))
def test_probabilities_come_from_averaged_logits(averaging, known):
    names = tuple(f'class {i}' for i in range(10))
    model = Model(None, RunRecord(completed({})), names, known.recipe, False, averaging, 128, None)
    classifier = Classifier(model, '/cpu:0')
    with tf.Session() as session:
        tf.trainable_variables()[0].load(known.weights, session)
        by_count = {n: session.run(classifier.probabilities, {classifier.images: known.images[:n]}) for n in (5, 1, 0)}
    expected = softmax(known.averaged if averaging else known.logits[0])
    for n, probabilities in by_count.items():
        np.testing.assert_allclose(probabilities, expected[:n], atol=1e-5)
    of_probabilities = np.average(softmax(known.logits), 0, [2, 1, 1, 2, 1, 1])
    assert np.abs(softmax(known.averaged) - of_probabilities)[:5].max() > 0.05  # another average would differ


@pytest.mark.parametrize('use_ema', [True, False])
def test_a_variable_is_replaced_by_its_moving_average_if_requested(use_ema):
    def build():
        return [tf.get_variable(name, []) for name in ('trained', 'fixed')]
    opened = ModelSession(build, choose(1, 'cpu'), use_ema)
    opened.load({'trained': np.float32(1), f'trained{AVERAGE}': np.float32(2), 'fixed': np.float32(3)})
    with opened.session as session:
        assert session.run(opened.built) == [2 if use_ema else 1, 3]
