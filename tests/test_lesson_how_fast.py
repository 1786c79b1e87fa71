"""Lesson 9: its formulas match a simulation, and no measurement is faster than predicted."""
import re

import numpy as np
import pytest

from lessons import how_fast
from tests.helpers import ROOT
from tests.learn_pages import assert_on_page
from tests.test_learn import VARYING

SOLUTIONS = ROOT / 'lessons' / 'solutions' / 'how_fast.py'
PAGE = ROOT / 'docs' / 'learn' / '09-how-fast.md'


def simulated(layers, backward, bucket, message, during):
    """Returns the time at which the last message of a backward pass has been sent, message by message."""
    sent = 0
    for complete in range(bucket, layers + 1, bucket):
        sent = max(sent, backward * (complete if during else layers)) + message
    return sent


def test_the_formulas_match_a_simulation(monkeypatch):
    random = np.random.default_rng(0)
    for _ in range(100):
        bucket, messages, backward, delay, send = (int(number) for number in random.integers(1, 40, 5))
        monkeypatch.setattr(how_fast, 'LAYERS', bucket * messages)
        monkeypatch.setattr(how_fast, 'BACKWARD_MS', backward)
        for during in (False, True):
            expected = simulated(bucket * messages, backward, bucket, delay + bucket * send, during)
            assert how_fast.predict_backward(bucket, delay, send, during) == expected


def tables(text):
    """Returns the numbers of the lesson's three tables, as lists of rows."""
    towers = re.findall(r'^ +(\d)' + r' +([\d.]+)%?' * 6 + '$', text, re.M)
    sending = re.findall(r'^ +(\d) +(\d)' + r' +([\d.]+)' * 4 + '$', text, re.M)
    clocks = re.findall(r'^(\S.*?)  +((?:> )?\d+) +([\d.]+)$', text, re.M)
    return [[list(map(float, row)) for row in table] for table in (towers, sending)] + [clocks]


@pytest.mark.stress
def test_no_step_is_faster_than_predicted_and_messages_leave_during_the_pass(output_of):
    text = output_of('how_fast.py')
    assert_on_page('python lessons/how_fast.py', text, *VARYING['how_fast.py'])
    towers, sending, clocks = tables(text)
    assert [row[0] for row in towers] == [1, 2, 4, 8] and [row[0] for row in sending] == [8, 4, 2, 1]
    assert all(row[2] >= row[1] - 0.1 for row in towers)
    assert all(row[3] >= row[2] - 0.1 and row[5] >= row[4] - 0.1 for row in sending)
    assert [predicted for _, predicted, _ in clocks] == ['0', '> 80', '20', '0', '80', '80']

    timelines = re.findall(r'in a message:\n/cpu:0  (.*)\n/cpu:1  (.*)\n', text)
    after, in_buckets, by_layer = timelines
    assert after[1].index('S0') >= len(after[0].rstrip('.')) - 1
    for (backward, link), bucket in ((in_buckets, 2), (by_layer, 1)):
        assert re.findall(r'[BS]\d', backward) == [f'B{layer}' for layer in range(7, -1, -1)]
        assert re.findall(r'[BS]\d', link) == [f'S{layer}' for layer in range(8 - bucket, -1, -bucket)]
        # The first message leaves when its gradients are ready, long before the pass has ended.
        assert backward.index(f'B{8 - bucket}') < link.index(f'S{8 - bucket}') < backward.index('B0')


def test_the_tutorials_table_is_read_with_the_readers_function(monkeypatch, capsys):
    monkeypatch.setattr(how_fast, 'EXERCISE', str(SOLUTIONS))
    how_fast.show_table()
    assert_on_page('python lessons/how_fast.py --exercise', capsys.readouterr().out)
