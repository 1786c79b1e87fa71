"""metrics.jsonl, and validation within a run."""
import errno
import json
import math
import os
import re
import resource

import pytest

from cifar10.base.errors import UsageError
from cifar10.data import datasets
from cifar10.run.metrics import EVAL, NAME, START, TRAIN, Log, fraction, last, read
from cifar10.training import trainer
from tests.helpers import scalars


def test_records_are_complete_lines_and_a_resume_drops_later_steps(tmp_path):
    kept = Log(str(tmp_path))
    kept.drop_after(3)  # there is no record yet
    for step in (1, 2, 3):
        kept.write(TRAIN, step, loss=0.1 + step, devices=2)
    kept.write(EVAL, 3, accuracy=1 / 3)
    with open(tmp_path / NAME, 'a') as stream:
        stream.write('{"kind": "train", "step": 4, "lo')  # a kill leaves a partial line
    assert [record['step'] for record in read(str(tmp_path), TRAIN)] == [1, 2, 3]
    before = (tmp_path / NAME).stat()
    kept.drop_after(2)
    assert [json.loads(line)['step'] for line in open(tmp_path / NAME)] == [1, 2]
    assert read(str(tmp_path), EVAL) == [] and read(str(tmp_path), TRAIN)[1]['loss'] == 2.1
    assert (tmp_path / NAME).stat().st_ino != before.st_ino  # replaced, not overwritten
    before = (tmp_path / NAME).stat()
    kept.drop_after(2)
    assert (tmp_path / NAME).stat() == before  # nothing to do


def test_the_record_of_a_start_is_dropped_with_its_last_step(tmp_path):
    kept = Log(str(tmp_path))
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4)), (4, ())):
        kept.drop_after(start)
        kept.write(START, start, settings=dict(rate=0.123456789))
        for step in steps:
            kept.write(TRAIN, step)
    assert [record['step'] for record in read(str(tmp_path), START)] == [0, 2, 4]
    kept.drop_after(2)
    assert [record['step'] for record in read(str(tmp_path), START)] == [0]
    assert [record['step'] for record in read(str(tmp_path), TRAIN)] == [1, 2]
    assert read(str(tmp_path), START)[0]['settings'] == dict(rate=0.123456789)  # unrounded
    assert last(str(tmp_path), TRAIN)['step'] == 2
    assert last(str(tmp_path), EVAL) is None and last(str(tmp_path / 'nowhere'), EVAL) is None


def test_a_record_may_replace_one_of_the_same_kind(tmp_path):
    kept = Log(str(tmp_path))
    for value, data in ((1, 'test'), (2, 'train_eval'), (3, 'test')):
        kept.write(EVAL, 5, replacing=('step', 'data'), value=value, data=data)
    assert [record['value'] for record in read(str(tmp_path), EVAL)] == [2, 3]


def test_foreign_lines_are_kept(tmp_path):
    lines = [b'my notes\n', b'{"step": 500, "loss": 2}\n', b'[1]\n', b'\xff\xfe\n']
    (tmp_path / NAME).write_bytes(b''.join(lines) + b'{"kind": "train", "st')
    kept = Log(str(tmp_path))
    kept.drop_after(3)
    assert (tmp_path / NAME).read_bytes() == b''.join(lines)
    kept.write(EVAL, 5, value=1)
    kept.write(EVAL, 5, replacing=('step',), value=2)
    assert [record['value'] for record in read(str(tmp_path), EVAL)] == [2]
    assert (tmp_path / NAME).read_bytes().startswith(b''.join(lines)) and read(str(tmp_path), TRAIN) == []


def test_trailing_zero_bytes_of_a_power_failure_are_dropped(tmp_path):
    kept = Log(str(tmp_path))
    kept.write(TRAIN, 1, loss=2.0)
    whole = (tmp_path / NAME).read_bytes()
    for tail in (bytes(100), b'{"kind": "tr' + bytes(50)):
        (tmp_path / NAME).write_bytes(whole + tail)
        kept.drop_after(3)
        assert (tmp_path / NAME).read_bytes() == whole


def test_a_line_cut_off_by_a_limit_raises_its_cause_and_is_dropped_at_the_next_start(tmp_path):
    kept = Log(str(tmp_path))
    kept.write(TRAIN, 1)
    before = (tmp_path / NAME).read_bytes()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 5, limit[1]))
    try:
        with pytest.raises(OSError) as refused:
            kept.write(TRAIN, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (refused.value.errno, refused.value.filename) == (errno.EFBIG, str(tmp_path / NAME))
    assert [record['step'] for record in read(str(tmp_path), TRAIN)] == [1]
    kept.drop_after(2)
    assert (tmp_path / NAME).read_bytes() == before


def test_a_figure_may_have_any_name(tmp_path):
    figures = {'step': 5.0, 'kind': 1.0, 'told': 2.0, 'recall/of all': 0.5, 'figures': 3.0}
    Log(str(tmp_path)).write(EVAL, 7, figures, examples=4)
    record, = read(str(tmp_path), EVAL)
    del record['time']
    assert record == {'kind': 'eval', 'step': 7, 'told': 2.0, 'recall/of all': 0.5, 'figures': 3.0, 'examples': 4}


# test_modes.py compares these evaluations with the evaluator; test_same_bits.py shows that they change no variable.
def test_evaluations_of_a_run_are_printed_recorded_and_drawn(settings, capsys):
    config = settings(num_gpus=2, max_steps=4, log_frequency=2, eval_steps=3)
    trainer.train(config)
    lines = re.findall(r'precision @ 1 = \S+ \(\d+ of 200\), step (\d+)$', capsys.readouterr().out, re.M)
    evaluations, steps = (read(config.run.train_dir, kind) for kind in (EVAL, TRAIN))
    assert [int(step) for step in lines] == [record['step'] for record in evaluations] == [3, 4]
    assert [(step, pytest.approx(value)) for step, value in scalars(config.run.train_dir, 'accuracy', 'eval')] == [
        (record['step'], record['correct'] / 200) for record in evaluations]
    assert [record['step'] for record in steps] == [2, 4]
    assert steps[0]['learning_rate'] == 0.1 and steps[0]['global_batch'] == 16 and steps[0]['devices'] == 2
    assert [(record['examples'], record['epoch']) for record in steps] == [(32, 0.032), (64, 0.064)]
    assert steps[0]['images_per_sec'] > 0 and 0 <= steps[0]['accuracy'] <= 1 and steps[0]['time'] > 1.7e9


def test_missing_test_images_are_reported_before_training(call, settings, data_dir, tmp_path):
    folder = tmp_path / 'data' / 'shapes-bin'
    folder.mkdir(parents=True)
    for name in datasets.TRAIN_FILES:
        os.symlink(os.path.join(data_dir, 'shapes-bin', name), folder / name)
    with pytest.raises(UsageError, match='test_batch.bin: No such file'):
        trainer.train(settings(data_dir=str(tmp_path / 'data'), eval_steps=1))
    assert not os.path.exists(tmp_path / 'train' / 'config.json')


@pytest.mark.parametrize('figure, shown', [
    (1, '1.000'), (1.0, '1.000'), (0.9995, '0.999'), (0.99999, '0.999'), (0.9985, '0.999'), (0.5, '0.500'),
    (0.0004, '0.000'), (math.nan, 'nan'), (75.0, '75.000')])
def test_only_an_exact_fraction_of_1_is_printed_as_1(figure, shown):
    assert fraction(figure) == shown
