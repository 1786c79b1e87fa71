"""Lesson 11: the lesson's measurements show each planted fault, and the solution finds the fault in them."""
import re
import time

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from lessons import common, diagnosis
from lessons.solutions import diagnosis as solutions
from tests.helpers import ROOT, mostly_stress, patient
from tests.learn_pages import assert_on_page

# Timelines and figures that depend on times.
TIMES = (r'^/cpu:\d  [IC\d|.=]{72}$', r'0 s +\d+\.\d\d s', r'^tower \d +\d\.\d{3} +\d\.\d{3}$',
         r'An update takes .*$')


def trained(fault, tower):
    """Trains with a fault; returns (the Training, the error or None). The error says that an update did not end."""
    devices = common.choose_devices('cpu', diagnosis.TOWERS)
    with tf.Graph().as_default():
        training = diagnosis.Training(devices, fault, tower)
        with common.session(devices, threads=16) as session:
            _, error = training.train(session)
    return training, error


@pytest.mark.parametrize('fault', mostly_stress(diagnosis.FAULTS, 'none', 'flipped_bit'))
def test_the_solution_finds_the_planted_fault(fault):
    training, error = trained(fault, 1)
    named = fault in ('stopped', 'slow_tower', 'flipped_bit')
    assert solutions.diagnose(training.run) == (fault, 1 if named else None)
    assert bool(error) == (fault == 'stopped')


@pytest.mark.stress
def test_a_correct_training_moves_as_computed_by_hand_but_a_sum_does_not():
    x = np.arange(16) * 5 % 7 - 3.0
    y = 2 * x + 1 + (np.arange(16) % 3 - 1) / 2
    first = 0.04 * 2 * np.array([np.mean(x * y), np.mean(y)])  # from a line through 0
    for fault, factor in (('none', 1), ('sum', 4), ('small_rate', 0.25)):
        run = trained(fault, 0)[0].run
        np.testing.assert_allclose(run['right'][0], first, rtol=1e-5)
        np.testing.assert_allclose(run['moved'], factor * run['right'], rtol=1e-3, atol=1e-5)
        assert (run['copies'] == run['copies'][:, :1]).all()


@pytest.mark.stress
def test_a_stopped_tower_is_named_within_seconds(output_of):
    start = time.monotonic()
    text = output_of('diagnosis.py', '--device=cpu', '--seed=11')
    assert time.monotonic() - start < patient(20)
    assert 'Update 3 did not end within 3 s (DeadlineExceededError). Computed: towers 1 2 3' in text
    assert_on_page('python lessons/diagnosis.py --seed=11', text, *TIMES)


@pytest.mark.stress
def test_the_page_shows_a_slow_tower(output_of):
    text = output_of('diagnosis.py', '--device=cpu', '--seed=21')
    assert_on_page('python lessons/diagnosis.py --seed=21', text, *TIMES)
    computing = [float(each) for each in re.findall(r'^tower \d +\d\.\d{3} +(\d\.\d{3})$', text, re.M)]
    assert np.argmax(computing) == 3 and computing[3] >= 0.25 > computing[0]
    took, predicted = map(float, re.search(r'An update takes ([\d.]+); .*: ([\d.]+)$', text, re.M).groups())
    assert predicted <= took + 0.01 and predicted >= 0.27


@pytest.mark.stress
def test_the_readers_diagnosis_is_tried_on_a_run(monkeypatch, capsys):
    monkeypatch.setattr(diagnosis, 'EXERCISE', str(ROOT / 'lessons' / 'solutions' / 'diagnosis.py'))
    monkeypatch.setattr('sys.argv', ['diagnosis.py', '--device=cpu', '--exercise', '--fault=sum', '--answer'])
    with tf.Graph().as_default():
        diagnosis.main()
    assert capsys.readouterr().out.endswith("\nYour diagnosis: ('sum', None)\n\nPlanted: sum\n")
