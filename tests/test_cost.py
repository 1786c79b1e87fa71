"""The cost of a start: its last line shows the time of each part, and another line reports slow steps."""
import re
import time

import pytest

from cifar10.base import console
from cifar10.run import cost, metrics
from cifar10.run.progress import Progress
from cifar10.training import run_files, trainer
from tests.helpers import slow_input


def test_parts_are_measured(settings, monkeypatch, capsys):
    slow_input(monkeypatch, 0.2)  # much longer than a step, even on a busy machine
    config = settings(num_gpus=2, batch_size=1, max_steps=8, eval_steps=8, save_steps=8, summary_steps=0)
    begin = time.perf_counter()
    trainer.train(config)
    took = time.perf_counter() - begin
    line, = re.findall('^cost .*', capsys.readouterr().out, re.M)
    whole, *parts = map(float, re.findall(r'([\d.]+) s\b', line))
    assert whole <= took + 0.1 and sum(parts) == pytest.approx(whole, rel=0.05, abs=0.3)
    assert float(re.search('([0-9.]+) s steps', line)[1]) > 0.5 * 7 * 0.2


@pytest.fixture
def clock(monkeypatch):
    """A list whose last item is the current time."""
    now = [0.0]
    monkeypatch.setattr(cost.time, 'perf_counter', lambda: now[-1])
    return now


def test_a_line_shows_the_seconds_of_each_part(clock):
    costs = cost.Cost(0.0, 100, 160)
    assert 'images/s' not in costs.summary()
    with costs.of(cost.STARTING):
        for step, now in ((101, 40.0), (102, 75.0), (103, 110.0)):
            clock.append(now)
            costs.after_step(step, {})
        with costs.of(cost.EVALUATION):
            clock.append(130.0)
        with costs.of(cost.SAVING):
            clock.append(130.1)
    # After the loss of a device, the first step of the new session counts as a part of its start.
    with costs.of(cost.STARTING):
        clock.append(140.1)
        costs.after_step(103, {})
    said = costs.summary()
    for part in ('70 s steps', '50 s starting', '20 s evaluation'):
        assert f' {part}' in said
    assert said.startswith('140 s: ') and said.endswith('; 3 images/s overall, 5 in steps')  # 480 in 140 s, 320 in 70 s


@pytest.mark.parametrize('seconds, slow', [
    ([0.1], []),
    ([0.1] * 8 + [0.19] * 8, []),
    ([0.1] * 8 + [0.21] * 8 + [0.1] * 8 + [0.5] * 8, [8]),  # once per run
    ([0.1] + [0.4] * 8, []),  # too early to know
    ([0.4] + [0.1] * 20 + [0.15, 0.05] * 10, []),
    ([0.1] * 20 + [0.1, 0.3] * 10, [21])])
def test_a_line_recommends_explain_if_steps_take_twice_the_median(seconds, slow, tmp_path, capsys):
    now = [0.0]
    progress = Progress(0, 10 ** 6, 100, 1, metrics.Log(str(tmp_path)), lambda step: {}, lambda: now[0])
    step = 0
    for each in seconds:  # each for 200 steps
        for _ in range(200):
            now[0] += each
            step += 1
            progress.after_step(step, dict(figures=dict(loss=1.0), losses=[1.0], thread=0))
    said = re.findall('^slow       steps (\\d+) to .* --explain ', capsys.readouterr().out, re.M)
    assert [round(int(first) / 200) for first in said] == slow


@pytest.mark.parametrize('every, begin, last, rates', [
    (1, 0, 3, [0.8, 80, 80]), (4, 0, 8, [80, 80]), (4, 6, 10, [80, 80]), (4, 0, 1, [0.8])])
def test_rates_exclude_the_slow_first_step_unless_it_is_the_only_one(every, begin, last, rates, tmp_path, capsys):
    now = [0.0]
    progress = Progress(begin, last, every, 8, metrics.Log(str(tmp_path)), lambda step: {}, lambda: now[0])
    for step in range(begin + 1, last + 1):
        now[0] += 10.0 if step == begin + 1 else 0.1
        progress.after_step(step, dict(figures=dict(loss=1.0), losses=[1.0], thread=0))
    assert [record['images_per_sec'] for record in metrics.read(str(tmp_path), metrics.TRAIN)] == pytest.approx(rates)
    printed = re.findall(r'\(([\d.]+) examples/sec', capsys.readouterr().out)
    assert list(map(float, printed)) == pytest.approx(rates)


def test_a_run_estimates_its_remaining_time_once_from_its_steps_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(console, 'shows_bars', lambda: True)
    now = [0.0]
    progress = Progress(0, 1001, 10 ** 6, 8, metrics.Log(str(tmp_path)), lambda step: {}, lambda: now[0])
    shown = {}
    for step in range(1, 200):
        now[0] += 30.0 if step == 1 else 0.875
        progress.after_step(step, dict(figures=dict(loss=1.0), losses=[1.0], thread=0))
        shown[step] = progress._bar.desc
    printed = re.findall('^estimate .*', capsys.readouterr().out, re.M)
    assert len(printed) == 1 and re.findall(r'[\d.]+', printed[0]) == ['14', '988']  # 12 steps after the first
    assert [shown[step] for step in (10, 11, 101)] == ['', '<14:26', '<13:07']


@pytest.mark.parametrize('seconds, last', [(0.05, 1000), (0.9, 60)])
def test_a_short_run_prints_no_estimate(seconds, last, tmp_path, capsys):
    now = [0.0]
    progress = Progress(0, last, 10, 8, metrics.Log(str(tmp_path)), lambda step: {}, lambda: now[0])
    for step in range(1, last + 1):
        now[0] += seconds
        progress.after_step(step, dict(figures=dict(loss=1.0), losses=[1.0], thread=0))
    assert 'estimate' not in capsys.readouterr().out


@pytest.mark.parametrize('stop', [5, 6])
def test_lines_are_in_order_of_time_even_after_an_interrupt(stop, settings, monkeypatch, capsys):
    monkeypatch.setattr(console.Output, 'is_log', False)  # as on a terminal

    class Interrupt:
        defer, asked = staticmethod(lambda: None), 0

        @property
        def requested(self):
            self.asked += 1
            return self.asked > stop
    trainer.train(settings(max_steps=9, log_frequency=1, eval_steps=4, network='linear'), Interrupt())
    lines = re.findall(r'^([-\d]+ [:.\d]+): (step \d+|precision .*, step \d+)', capsys.readouterr().out, re.M)
    steps = [int(re.findall(r'step (\d+)', text)[0]) for _, text in lines]
    assert [time for time, _ in lines] == sorted(time for time, _ in lines)
    assert steps == [1, 4, 4, stop]


def test_explain_is_not_recommended_where_it_is_refused(tmp_path, capsys):
    now = [0.0]
    progress = Progress(0, 10 ** 6, 10, 1, metrics.Log(str(tmp_path)), lambda step: {}, lambda: now[0], False)
    for step in range(1, 2001):
        now[0] += 1.0 if step < 1000 else 10.0
        progress.after_step(step, dict(figures=dict(loss=1.0), losses=[1.0], thread=0))
    assert '--explain' not in capsys.readouterr().out


@pytest.mark.parametrize('mode, recommended', [('local', True), ('async', False)])
def test_explain_is_recommended_in_the_modes_that_it_measures(mode, recommended, settings, monkeypatch):
    given = []
    monkeypatch.setattr(run_files, 'Progress', lambda *arguments: given.append(arguments[-1]) or Progress(*arguments))
    trainer.train(settings(variable_update=mode, num_gpus=1, batch_size=1, max_steps=1, network='linear'))
    assert given == [recommended]
