"""Short runs in `async`, in which threads take most steps and the loop sees few of them."""
import os

import pytest

from cifar10.run import metrics
from cifar10.run.folder import step_of
from cifar10.training.reports import _NowAndThen
from tests.helpers import checkpoints, mostly_stress, train


@pytest.mark.parametrize('last, every', mostly_stress([(13, 12), (48, 12), (2, 1)], (13, 12)))
def test_the_last_step_has_a_line_and_is_evaluated_once(settings, last, every, capsys):
    given = settings(max_steps=last, num_gpus=8, batch_size=4, log_frequency=every, eval_steps=every,
                     variable_update='async', profile_steps='2:2')
    train(given)
    folder, output = given.run.train_dir, capsys.readouterr().out
    evaluated, logged = ([record['step'] for record in metrics.read(folder, kind)]
                         for kind in (metrics.EVAL, metrics.TRAIN))
    end = step_of(checkpoints(folder)[-1])
    assert end >= last and f': step {logged[-1]}, loss = ' in output
    for steps in (evaluated, logged):
        assert steps == sorted(set(steps)) and steps[-1] == end
    assert any(name.startswith('trace-') for name in os.listdir(folder)) or 'untraced   --profile_steps=2:2' in output


def test_what_is_done_now_and_then_is_not_done_twice_at_one_step(settings):
    class Plan:
        last_step = 25
    # The loop sees steps 1, 11 and 23. Others take some before it acts, and the last ones.
    acted, steps_of_act = [], iter([12, 25, 25])

    def act():
        acted.append(next(steps_of_act))
        return acted[-1]
    reporter = _NowAndThen(act, 10, Plan, 0)
    for step in (1, 11, 23):
        reporter.after_step(step, {})
    reporter.at_end(25)
    assert acted == [12, 25]
