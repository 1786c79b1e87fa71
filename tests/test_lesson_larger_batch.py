"""Lesson 10: the page shows its output, and the noise scale is right for gradients with known noise."""
import os
import re
import sys

import numpy as np
import pytest

from lessons import larger_batch, noise_scale
from lessons.solutions import larger_batch as solutions
from tests.helpers import ROOT
from tests.learn_pages import assert_on_page, shown_outputs

REAL = os.environ.get('CIFAR10_DATA_DIR')
PAGE = ROOT / 'docs' / 'learn' / '10-larger-batch.md'


@pytest.mark.stress
def test_the_page_shows_the_output(output_of):
    assert_on_page('python lessons/larger_batch.py', output_of('larger_batch.py', '--device=cpu'))


@pytest.mark.parametrize('scale', [2.0, 50.0])
def test_the_noise_scale_is_right_for_known_noise(scale):
    random = np.random.default_rng(1)
    G = random.normal(size=30)
    noise = random.normal(size=[4000, 8, 30]) * np.sqrt(scale * (G @ G) / 30 / 16)  # for batches of 16
    gradients = G + noise
    norm, variance, found, error = larger_batch.noise_scale(
        np.square(gradients).sum(-1).mean(1), np.square(gradients.mean(1)).sum(-1), 16)
    assert norm == pytest.approx(G @ G, rel=0.05) and variance == pytest.approx(scale * (G @ G), rel=0.03)
    assert abs(found - scale) < 4 * error and error < 0.05 * scale


@pytest.mark.stress
def test_the_noise_scale_predicts_the_gradient_of_a_larger_batch(data_dir, monkeypatch, capsys):
    """Uses the classic network and generated images."""
    monkeypatch.setattr(noise_scale, 'POINTS', 8)
    monkeypatch.setattr(sys, 'argv', ['noise_scale.py', '--dataset=shapes', f'--data_dir={data_dir}', '--after=3,40'])
    noise_scale.main()
    found = rows(capsys.readouterr().out)
    assert [row[0] for row in found] == [3, 40]
    for _, loss, scale, error, predicted, measured in found:
        assert 0 < loss < 10 and 0 < error < scale and predicted == pytest.approx(measured, rel=0.5)


@pytest.mark.stress
@pytest.mark.skipif(not REAL, reason='needs real images, in $CIFAR10_DATA_DIR/cifar-10-batches-bin')
def test_the_noise_scale_of_real_images_matches_the_page(output_of):
    text = output_of('noise_scale.py', f'--data_dir={REAL}', '--after=100,500')
    # Different rounding on another processor leads to different weights. The errors include it.
    command = 'python lessons/noise_scale.py --data_dir=/tmp/cifar10_data --after=100,500'
    assert_on_page(command, text, r'(?<=\d) +[\d.]+( \+- \d+)?')
    (shown,) = shown_outputs(command)
    for ours, theirs in zip(rows(text), rows(shown), strict=True):
        assert ours[2] == pytest.approx(theirs[2], abs=4 * (ours[3] + theirs[3]))
        assert ours[4] == pytest.approx(ours[5], rel=0.25), 'predicted and measured'


def rows(text):
    """Returns the numbers of each row of the table that noise_scale.py prints."""
    return [[float(number) for number in re.findall(r'[\d.]+', line)] for line in text.splitlines()[3:]]


@pytest.mark.stress
def test_measuring_at_fixed_weights_changes_no_weight(data_dir):
    run, looks = noise_scale.build('shapes', data_dir)
    with run.opened():
        run.take()
        before = run.variables(['conv1/weights', 'softmax_linear/biases'])
        found = run.take(looks, {run.graph.learning_rate: 0.0})
        after = run.variables(list(before))
        run.take()
        moved = run.variables(list(before))
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value)
        assert np.any(moved[name] != value)
    # A mean is shorter than its terms, but not shorter than the mean of K orthogonal terms.
    assert found['squares'].mean() / 8 < np.square(found['mean']).sum() < found['squares'].mean()


def test_the_answer_has_the_epochs_of_the_solution():
    epochs = [solutions.updates_and_epochs(30000, gpus, 128, 50000)[0] for gpus in (2, 3, 4)]
    page = ' '.join(PAGE.read_text().split())
    assert '30,000 updates are {} epochs on two GPUs, {} on three and {} on four.'.format(*epochs) in page
