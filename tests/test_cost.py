"""The last line of a start says what its time went into."""
import re
import time

import numpy as np
import pytest

from cifar10.base import console
from cifar10.evaluation.evaluator import Validation
from cifar10.run import cost, metrics
from cifar10.training import trainer
from tests.helpers import slow_input


def test_parts_are_measured(settings, monkeypatch, capsys):
    slow_input(monkeypatch, 0.2)  # much longer than a step takes, also on a busy machine
    config = settings(num_gpus=2, batch_size=1, max_steps=8, eval_steps=8, save_steps=8, summary_steps=0)
    begin = time.perf_counter()
    trainer.train(config)
    took = time.perf_counter() - begin
    line, = re.findall('^cost .*', capsys.readouterr().out, re.M)
    whole, *parts = map(float, re.findall(r'([\d.]+) s\b', line))
    assert whole <= took + 0.1 and sum(parts) == pytest.approx(whole, rel=0.05, abs=0.3)
    assert float(re.search('([0-9.]+) s waiting for input', line)[1]) > 0.5 * 7 * 0.2


@pytest.mark.stress
def test_the_callers_own_code_is_neither_a_step_nor_a_save_and_rates_are_of_steps(settings, monkeypatch, capsys):
    config = settings(batch_size=1, max_steps=9, eval_steps=3, save_steps=3, log_frequency=3, summary_steps=0)
    evaluate = Validation.evaluate
    monkeypatch.setattr(Validation, 'evaluate', lambda *given: time.sleep(0.3) or evaluate(*given))
    with console.Output(on_record=lambda record: time.sleep(0.1)).used():
        trainer.train(config)
    line, = re.findall('^cost .*', capsys.readouterr().out, re.M)
    parts = {name: float(seconds) for seconds, name in re.findall(r'([\d.]+) s ([a-z_]+)', line)}
    records = metrics.read(config.run.train_dir, *metrics.KINDS)
    assert parts['on_record'] == pytest.approx(0.1 * len(records), abs=0.3) and len(records) >= 10
    assert parts['evaluation'] > 3 * 0.3 and parts.get('saving', 0) < parts['on_record']
    # Three steps of a linear network take less than the evaluation between them.
    assert min(record['images_per_sec'] for record in records if record['kind'] == metrics.TRAIN) > 3 / 0.3


@pytest.fixture
def clock(monkeypatch):
    """A list whose last item is the present time."""
    now = [0.0]
    monkeypatch.setattr(cost.time, 'perf_counter', lambda: now[-1])
    return now


# GPUs wait for the one that waits longest, CPU devices until one of them has its batch.
@pytest.mark.parametrize('on_gpus, waited, stepped', [(False, 4, 66), (True, 30, 40)])
def test_a_line_has_the_seconds_of_each_part(on_gpus, waited, stepped, clock):
    costs = cost.Cost(0.0, 100, 160, 2, on_gpus, [])
    assert 'images/s' not in costs.summary()
    with costs.of(cost.STARTING):
        for step, now in ((101, 40.0), (102, 75.0), (103, 110.0)):
            clock.append(now)
            costs.after_step(step, dict(seconds=np.array([[10.0, 0], [1.0, 0], [5.0, 0], [1.0, 0]])))
        with costs.of(cost.EVALUATION):
            clock.append(130.0)
        with costs.of(cost.SAVING):
            clock.append(130.1)
    # A session after the loss of a device begins with a step that belongs to its start.
    with costs.of(cost.STARTING):
        clock.append(140.1)
        costs.after_step(103, {})
    said = costs.summary()
    for part in (f'{stepped} s steps', f'{waited} s waiting for input', '50 s starting', '20 s evaluation'):
        assert f' {part}' in said
    assert said.startswith('140 s: ') and said.endswith('; 3 images/s overall, 5 in steps')  # 480 in 140 s, 320 in 70 s
