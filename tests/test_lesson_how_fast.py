"""Lesson 9: what it predicts is what a simulation finds, and what it measures is not faster than that."""
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
    """Returns when the last message of a backward pass has been sent, message by message."""
    sent = 0
    for complete in range(bucket, layers + 1, bucket):
        sent = max(sent, backward * (complete if during else layers)) + message
    return sent


def test_the_formulas_are_those_of_a_simulation(monkeypatch):
    random = np.random.default_rng(0)
    for _ in range(100):
        bucket, messages, backward, delay, send = (int(number) for number in random.integers(1, 40, 5))
        monkeypatch.setattr(how_fast, 'LAYERS', bucket * messages)
        monkeypatch.setattr(how_fast, 'BACKWARD_MS', backward)
        for during in (False, True):
            expected = simulated(bucket * messages, backward, bucket, delay + bucket * send, during)
            assert how_fast.predict_backward(bucket, delay, send, during) == expected


def tables(text):
    """Returns the numbers of the three tables that the lesson prints, as lists of rows."""
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
        # The first message leaves when its gradients are there, long before the pass has ended.
        assert backward.index(f'B{8 - bucket}') < link.index(f'S{8 - bucket}') < backward.index('B0')


@pytest.mark.timing
@pytest.mark.parametrize('arguments', [[], ['--delay=0'], ['--send=15']])
def test_what_is_measured_is_what_is_predicted(arguments, output_of):
    towers, sending, clocks = tables(output_of('how_fast.py', *arguments))
    for row in towers:
        assert row[2] == pytest.approx(row[1], rel=0.08)
    for row in sending:
        assert row[3] == pytest.approx(row[2], rel=0.08) and row[5] == pytest.approx(row[4], rel=0.08)
    for title, predicted, measured in clocks:
        if not predicted.startswith('>'):
            assert float(measured) == pytest.approx(float(predicted), rel=0.08, abs=10), title


def test_the_table_of_the_tutorial_is_read_with_the_function_that_the_reader_has_written(monkeypatch, capsys):
    monkeypatch.setattr(how_fast, 'EXERCISE', str(SOLUTIONS))
    how_fast.show_table()
    assert_on_page('python lessons/how_fast.py --exercise', capsys.readouterr().out)


def test_the_page_has_the_figures_of_the_classic_network_that_were_measured():
    page, scaling = (' '.join(PAGE.read_text().split()), (ROOT / 'docs' / 'scaling.md').read_text())
    measured = {name: [tuple(map(float, cell.split(' + '))) for cell in cells] for name, *cells in re.findall(
        r'^\| `(\w+)` \| ([\d. +]+) \| ([\d.]+) \| ([\d. +]+) \| ([\d.]+) \|$', scaling, re.M)}
    found, = re.findall(
        r'compute for (\S+) s and send for (\S+) s at 1 Gbit/s .`replicated`., and a step takes (\S+) s:', page)
    terms, total, *_ = measured['replicated']
    assert tuple(map(float, found)) == (*terms, *total)
    for cells in measured.values():
        for terms, (total,) in (cells[:2], cells[2:]):
            assert max(terms) < total < sum(terms)
