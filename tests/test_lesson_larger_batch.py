"""Lesson 10: what it predicts is what it measures, and the noise scale is right for gradients whose noise is known."""
import os
import re
import sys

import numpy as np
import pytest

from lessons import larger_batch, noise_scale
from lessons.solutions import larger_batch as solutions
from tests.helpers import ROOT, python
from tests.learn_pages import assert_on_page, shown_outputs

REAL = os.environ.get('CIFAR10_DATA_DIR')
PAGE = ROOT / 'docs' / 'learn' / '10-larger-batch.md'


def part(text, number):
    """Returns the lines of a part of the output, without its heading."""
    return re.search(rf'^{number}\. .*\n((?:.+\n)+)', text, re.M).group(1).splitlines()


@pytest.fixture(scope='module')
def printed():
    """What the lesson prints."""
    result = python('lessons/larger_batch.py', '--device=cpu')
    assert (result.returncode, result.stderr) == (0, '')
    return result.stdout


@pytest.mark.stress
def test_the_page_shows_what_is_printed(printed):
    assert_on_page('python lessons/larger_batch.py', printed)


@pytest.mark.stress
def test_the_noise_is_divided_by_the_examples(printed):
    rows = np.array([line.split() for line in part(printed, 1)[1:]], float)
    assert rows[:, 1].tolist() == [16, 32, 64, 128]
    variance = np.logspace(0, -2, 10).sum()
    np.testing.assert_allclose(rows[:, 2], variance / rows[:, 1], atol=6e-5)
    page = ' '.join(PAGE.read_text().split())
    assert f'the sum of h, {variance:.2f}.' in page
    assert f'9 · (sum of h²) = {9 * np.square(np.logspace(0, -2, 10)).sum():.2f}' in page
    # 400 draws of about 2.5 independent squares each, so a standard error of about 4%.
    np.testing.assert_allclose(rows[:, 3], rows[:, 2], rtol=0.12)


@pytest.mark.stress
def test_the_noise_scale_of_the_towers_is_the_exact_one_within_its_error(printed):
    rows = [[float(number) for number in re.findall(r'[\d.]+', line)] for line in part(printed, 2)[2:]]
    assert [row[0] for row in rows] == [0, 10, 30, 60]
    for _, _, norm, _, variance, measured, exact, found, error in rows:
        assert exact == pytest.approx(variance / norm, rel=0.02) and measured == pytest.approx(variance, rel=0.05)
        assert abs(found - exact) < 4 * error + 0.006  # 0.006: two digits are printed
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
    assert [row[6] for row in rows] == sorted(row[6] for row in rows), 'it grows as the loss falls'


@pytest.mark.stress
def test_losses_are_the_predicted_ones_and_diverge_beyond_the_limit(printed):
    rows = [re.fullmatch(r' +(\d+)  (.{11}) +([\d.]+) +(\d+) +(\S+) +(\S+) +(\S+)', line).groups()
            for line in part(printed, 3)[1:]]
    floors = {}
    for batch, rule, rate, updates, predicted, measured, endless in rows:
        batch, rate = int(batch), float(rate)
        assert int(updates) == 1600 // batch
        assert float(measured) == pytest.approx(float(predicted), rel=0.08)
        if rate < 2:
            curvatures = np.logspace(0, -2, 10)
            floor = (rate * curvatures / (2 * batch * (2 - rate * curvatures))).sum()  # as the page has it
            assert float(endless) == pytest.approx(floor, abs=6e-5)
            floors[batch, rule.strip()] = floor
        else:
            assert endless == 'none' and float(predicted) > 1e6
    assert floors[4, 'linear'] == pytest.approx(floors[1, ''], rel=0.2)  # what the linear rule keeps
    assert floors[4, 'square root'] == pytest.approx(floors[1, ''] / 2, rel=0.1)


@pytest.mark.stress
def test_a_warm_up_is_long_enough_or_not(printed):
    rows = [line.split() for line in part(printed, 4)[1:]]
    for length, factor, end in rows:
        w = 3.0
        with np.errstate(over='ignore', invalid='ignore'):
            for update in range(1, 11):
                w = np.float64(w - 0.4 * min(1, update / max(int(length), 1)) * w ** 3)  # the gradient of w^4 / 4
        assert float(factor) == pytest.approx(1 - 9 * 0.4 / max(int(length), 1), abs=0.006)
        assert (end == 'inf') == (not abs(w) < 1e6) and (end == 'inf' or float(end) == pytest.approx(abs(w), abs=6e-4))
    assert [end == 'inf' for *_, end in rows] == [True, True, False]


@pytest.mark.stress
def test_the_knee_is_at_the_noise_scale(printed):
    rows = np.array([line.split() for line in part(printed, 5)[1:]], float)
    batches, rates, predicted, measured, by_formula, examples = rows.T
    np.testing.assert_allclose(measured, predicted, rtol=0.06, atol=1)
    np.testing.assert_allclose(by_formula, predicted, rtol=0.08)
    np.testing.assert_array_equal(examples, batches * predicted)
    assert np.all(np.diff(rates) >= 0) and np.all(np.diff(predicted) < 0) and np.all(np.diff(examples) > 0)
    for batch, rate, updates in zip(batches, rates, predicted):
        assert expected_loss(rate, batch, int(updates)) <= 0.0501
        assert expected_loss(np.linspace(0.01, 1.99, 400), batch, int(0.97 * updates) - 1).min() > 0.05


def expected_loss(rate, batch, updates):
    """Returns the expected loss after so many updates, by the recursion that the page has; for each of some rates."""
    curvatures, rate = np.logspace(0, -2, 10), np.reshape(rate, [-1, 1])
    squares = np.full([len(rate), 10], 9.0)
    for _ in range(updates):
        squares = (1 - rate * curvatures) ** 2 * squares + rate ** 2 * curvatures / batch
    return (curvatures * squares).sum(1) / 2


@pytest.mark.parametrize('scale', [2.0, 50.0])
def test_the_noise_scale_of_known_noise(scale):
    random = np.random.default_rng(1)
    G = random.normal(size=30)
    noise = random.normal(size=[4000, 8, 30]) * np.sqrt(scale * (G @ G) / 30 / 16)  # of batches of 16
    gradients = G + noise
    norm, variance, found, error = larger_batch.noise_scale(
        np.square(gradients).sum(-1).mean(1), np.square(gradients.mean(1)).sum(-1), 16)
    assert norm == pytest.approx(G @ G, rel=0.05) and variance == pytest.approx(scale * (G @ G), rel=0.03)
    assert abs(found - scale) < 4 * error and error < 0.05 * scale


@pytest.mark.stress
def test_the_noise_scale_of_the_classic_network(data_dir, monkeypatch, capsys):
    """With images that are made for the tests: what is printed predicts the gradient of a larger batch."""
    monkeypatch.setattr(noise_scale, 'STEPS', 32)
    monkeypatch.setattr(sys, 'argv', ['noise_scale.py', '--dataset=shapes', f'--data_dir={data_dir}', '--after=3,6'])
    noise_scale.main()
    found = rows(capsys.readouterr().out)
    assert [row[0] for row in found] == [3, 6]
    for _, loss, scale, error, predicted, measured in found:
        assert 0 < loss < 10 and 0 < error < scale and predicted == pytest.approx(measured, rel=0.5)


@pytest.mark.stress
@pytest.mark.skipif(not REAL, reason='needs real images, in $CIFAR10_DATA_DIR/cifar-10-batches-bin')
def test_the_noise_scale_of_real_images_is_what_the_page_shows(output_of):
    text = output_of('noise_scale.py', f'--data_dir={REAL}', '--after=100,500')
    # Roundings of another processor lead to other weights.
    command = 'python lessons/noise_scale.py --data_dir=/tmp/cifar10_data --after=100,500'
    assert_on_page(command, text, r'(?<=\d) +[\d.]+( \+- \d+)?')
    (shown,) = shown_outputs(command)
    for ours, theirs in zip(rows(text), rows(shown), strict=True):
        assert ours[2] == pytest.approx(theirs[2], abs=4 * (ours[3] + theirs[3]))
        assert ours[4] == pytest.approx(ours[5], rel=0.25), 'predicted and measured'


def rows(text):
    """Returns the numbers of each line of the table that noise_scale.py prints."""
    return [[float(number) for number in re.findall(r'[\d.]+', line)] for line in text.splitlines()[3:]]


@pytest.mark.stress
def test_steps_at_the_same_weights_change_no_weight(data_dir):
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
    # A mean is shorter than its terms, and not longer than K of them would be at right angles.
    assert found['squares'].mean() / 8 < np.square(found['mean']).sum() < found['squares'].mean()


def test_the_answer_has_the_epochs_of_the_solution():
    epochs = [solutions.updates_and_epochs(30000, gpus, 128, 50000)[0] for gpus in (2, 3, 4)]
    page = ' '.join(PAGE.read_text().split())
    assert '30,000 updates are {} epochs on two GPUs, {} on three and {} on four.'.format(*epochs) in page
