"""The time of a run, by what it went into, adds up over all its starts."""
import pathlib
import time

import pytest

from cifar10.data.images import Images
from cifar10.run import cost, metrics
from cifar10.training import trainer
from tests.helpers import random_moments, read_until, run_script, start_script, tf


@pytest.mark.parametrize('kills, steps, tolerance', [
    pytest.param(1, 800, 0.2, marks=pytest.mark.stress), pytest.param(5, 4000, 0.02, marks=pytest.mark.timing)])
def test_killed_and_started_again_a_run_has_cost_what_a_clock_says(
        kills, steps, tolerance, data_dir, tmp_path):
    flags = dict(network='linear', dataset='shapes', data_dir=data_dir, batch_size=4, num_gpus=2, tower_device='cpu',
                 log_frequency=10, summary_steps=0, save_steps=200, eval_steps=500, train_dir=tmp_path,
                 max_steps=steps * (kills + 1))
    moments = random_moments()
    lost = between = 0
    begin = newest = None
    for _ in range(kills):
        process = start_script('multi_gpu_train.py', **flags)
        read_until(process, 'recipe')
        if begin is None:
            begin = time.time()
        else:
            between += time.time() - newest
        read_until(process, 'loss = ')
        time.sleep(moments.uniform(0.2, 1))
        process.kill()
        process.wait()
        newest = metrics.last(tmp_path)['time']
        lost += newest - max(record['time'] for kind in (metrics.START, metrics.CHECKPOINT)
                             for record in metrics.read(tmp_path, kind))
    process = start_script('multi_gpu_train.py', **flags)
    read_until(process, 'recipe')
    between += time.time() - newest
    said = read_until(process, 'cost   ')
    whole = time.time() - begin
    process.wait()
    record = metrics.last(tmp_path, metrics.COST)
    seconds = record['seconds']
    assert record['ended'] and record['starts'] == kills + 1 and record['examples'] == 8 * flags['max_steps']
    assert seconds['idle'] == 0 and min(seconds.values()) >= 0
    assert sum(seconds.values()) == pytest.approx(whole, rel=tolerance)
    assert seconds['unknown'] == pytest.approx(between, abs=tolerance * whole)
    assert seconds['again'] == pytest.approx(lost, abs=tolerance * whole)
    assert cost.line(record) in said
    # Once more: after an orderly end, what lies between is known.
    time.sleep(1)
    assert run_script('multi_gpu_train.py', **dict(flags, max_steps=flags['max_steps'] + 10)).returncode == 0
    after = metrics.last(tmp_path, metrics.COST)
    assert after['seconds']['idle'] > 1 and after['seconds']['unknown'] == seconds['unknown']
    assert f"{after['seconds']['idle']:.0f} s idle between starts" in cost.line(after)


def test_parts_are_measured(settings, monkeypatch):
    make = Images.batch

    def slowly(images, augmentation, examples, positions):
        def wait(examples):
            time.sleep(0.03)
            return examples
        slow = tf.ensure_shape(tf.numpy_function(wait, [examples], tf.int64), examples.shape)
        return make(images, augmentation, slow, positions)
    monkeypatch.setattr(Images, 'batch', slowly)
    config = settings(num_gpus=2, batch_size=1, max_steps=40, eval_steps=10, save_steps=20, summary_steps=0)
    begin = time.time()
    trainer.train(config)
    record = metrics.last(config.run.train_dir, metrics.COST)
    seconds = record['seconds']
    assert sum(seconds.values()) <= time.time() - begin
    assert seconds['input'] > 0.5 * 39 * 0.03 and all(seconds[part] > 0 for part in ('start', 'evaluation', 'saving'))
    assert seconds['again'] == seconds['unknown'] == seconds['idle'] == 0 and record['starts'] == 1
    events, = pathlib.Path(config.run.train_dir).glob('*tfevents*')
    texts = [value.tensor.string_val for event in tf.train.summary_iterator(str(events))
             for value in event.summary.value if value.tag == 'cost']
    assert texts == [[cost.line(record).encode()]]


def record(starts=1, examples=640, ended=True, **seconds):
    return dict(starts=starts, examples=examples, ended=ended, step=20, seconds={**dict.fromkeys(
        ('steps', 'input', 'evaluation', 'saving', 'start', 'again', 'idle', 'unknown'), 0.0), **seconds})


@pytest.mark.parametrize('figures, said', [
    (record(steps=6.0, start=4.0), '10 s in 1 start: 60% steps, 40% starting; 64 images/s over all, 107 in steps'),
    (record(4, 10 ** 6, steps=10000.0, input=200.0, evaluation=500.0, saving=100.0, start=300.0, again=400.0,
            idle=90000.0, unknown=61.0),
     '3 h 11 min in 4 starts: 87% steps, 4% evaluation, 3% taken again, 3% starting, 2% waiting for input, 1% saving; '
     '87 images/s over all, 98 in steps; 25 h 0 min idle between starts; 1 min 1 s unknown, between the last '
     'record and the next start'),
    (record(examples=0, start=2.0, ended=False),
     '2 s in 1 start: 100% starting; up to step 20, what came later is not counted yet')])
def test_a_line_has_what_matters(figures, said):
    assert cost.line(figures) == f'cost       {said}'
