"""Class weights: mean 1 over the data set, the same on all towers, suggested for uneven data sets."""

import numpy as np
import pytest

from cifar10 import evaluate, train
from cifar10.base.errors import UsageError
from cifar10.model.class_weights import class_weights
from cifar10.run import metrics
from cifar10.run.folder import best_of
from tests.helpers import checkpoints, variables

COUNTS = dict(cat=40, dog=8, hen=2)
_LOSSES = """
import tensorflow.compat.v1 as tf
def own(logits, labels):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
def weighted(logits, labels):  # 60 images: 40, 15 and 5
    return own(logits, labels) * tf.gather([60 / 3 / 40, 60 / 3 / 15, 60 / 3 / 5], labels)
"""


@pytest.mark.parametrize('text, relative', [
    ('balanced', (1 / 40, 1 / 8, 1 / 2)), ('dog=2', (1, 2, 1)), ('dog=0.5,hen=12', (1, 0.5, 12))])
def test_the_mean_weight_over_the_images_is_1(text, relative):
    weights = class_weights(text, COUNTS)
    np.testing.assert_allclose(weights / weights[0], np.array(relative) / relative[0], rtol=1e-6)
    assert weights @ list(COUNTS.values()) == pytest.approx(sum(COUNTS.values())) and weights.dtype == np.float32


@pytest.fixture
def uneven(tmp_path):
    """A function that makes the settings of a small run on 40, 15 and 5 images of three classes."""
    def images(seed):
        random = np.random.default_rng(seed)
        labels = random.permutation(np.repeat([0, 1, 2], [40, 15, 5]))
        pixels = random.integers(0, 100, [60, 32, 32, 3]) + 50 * labels[:, None, None, None]
        return pixels.astype(np.uint8), labels
    (tmp_path / 'losses.py').write_text(_LOSSES)

    def make(**changes):
        return dict(dict(dataset=(images(0), images(1)), data_dir=str(tmp_path / 'data'), network='linear',
                         train_dir=str(tmp_path / 'train'), batch_size=12, tower_device='cpu', max_steps=4,
                         summary_steps=0), **changes)
    return make


def trained(settings, name, folder, **changes):
    directory = str(folder / name)
    train(**settings(train_dir=directory, **changes))
    return variables(checkpoints(directory)[-1])


def test_towers_with_class_weights_match_one_tower_and_an_equivalent_loss(uneven, tmp_path):
    loss = f'{tmp_path}/losses.py:'
    found = trained(uneven, 'three', tmp_path, class_weights='balanced', num_gpus=3, batch_size=4, loss=loss + 'own')
    expected = trained(uneven, 'by_hand', tmp_path, loss=loss + 'weighted')
    for variable, value in expected.items():
        np.testing.assert_allclose(found[variable], value, atol=1e-6, err_msg=variable)
    assert any(np.abs(value).max() > 1e-3 for name, value in expected.items() if name.startswith('linear/'))


def test_a_start_lists_the_classes_and_evaluations_report_mean_recall(uneven, capsys):
    settings = uneven(eval_steps=4)
    result = train(say=print, **settings)
    output = capsys.readouterr().out
    assert '0 40, 1 15, 2 5 images; --class_weights=balanced gives all classes equal weight\n' in output
    evaluated = evaluate(checkpoint_dir=settings['train_dir'], data_dir=settings['data_dir'])
    recalls = [each['recall'] for each in evaluated.per_class.values()]
    assert evaluated.mean_recall == pytest.approx(np.mean(recalls)) == pytest.approx(result.evaluation['mean_recall'])
    assert f'; mean recall of the classes {evaluated.mean_recall:.3f}, step 4\n' in output
    record, = metrics.read(settings['train_dir'], metrics.EVAL)
    assert record['mean_recall'] == result.evaluation['mean_recall'] != record['accuracy']


@pytest.mark.parametrize('text, problem', [
    ('cats=2', '--class_weights=cats=2: .* cats; .*0, 1, 2'),
    ('0=0', '--class_weights=0=0 is not valid; give balanced, none, or')])
def test_invalid_weights_are_refused(text, problem, uneven):
    with pytest.raises(UsageError, match=problem):
        train(**uneven(class_weights=text))


@pytest.mark.stress  # by default without runs: test_best.py
@pytest.mark.parametrize('weights, figure', [('none', 'accuracy'), ('balanced', 'mean_recall')])
def test_the_best_checkpoint_is_chosen_by_the_right_metric(weights, figure, uneven):
    settings = uneven(class_weights=weights, eval_steps=1, keep_best=True, max_steps=8, batch_size=6, learning_rate=0.3)
    train(**settings)
    records = metrics.read(settings['train_dir'], metrics.EVAL)
    best = max(records, key=lambda record: (record[figure], -record['cross_entropy']))
    assert best_of(settings['train_dir'])['step'] == best['step']
