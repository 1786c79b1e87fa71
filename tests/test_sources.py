"""docs/sources.md: what it computes from the tutorial's table, and its programs for the parabola."""
import difflib
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers
from tests.helpers import ROOT, python

PAGE = (ROOT / 'docs' / 'sources.md').read_text()
ALONE, TOWERS = re.findall(r'```python\n(.*?)```', PAGE, re.S)
PRINTED = re.search(r'same losses.*?```\n(.*?)```', PAGE, re.S).group(1)

GPUS = {1: (0.35, 0.60), 2: (0.13, 0.20), 4: (0.10, 0.10)}  # K20m: seconds a batch in the tutorial's table


def figures(pattern):
    """Returns the numbers of the one place of the page that a pattern finds, as the page shows them."""
    found, = re.findall(pattern, re.sub(r'\s+', ' ', PAGE))
    return [found] if isinstance(found, str) else list(found)


def hours(steps, low, high):
    """Returns the hours that so many steps take, as the page shows them."""
    return [f'{steps * seconds / 3600:.1f}' for seconds in (low, high)]


def test_the_seconds_and_hours_follow_from_the_tutorials_table():
    for count, (low, high) in GPUS.items():
        shown = f'| {count} Tesla K20m | ' + (f'{low:.2f}-{high:.2f}' if low < high else 'about 0.10')
        assert shown in PAGE
    images = 4 * 128 / (4 * GPUS[4][0])
    one = [128 / seconds for seconds in reversed(GPUS[1])]
    assert figures(r'took (0\.\d+) s for 512 images: ([\d,]+) images/s, where one GPU had (\d+) to (\d+), '
                   r'so ([\d.]+) to ([\d.]+)') == [
        f'{4 * GPUS[4][0]:.2f}', f'{images:,.0f}', *(f'{each:.0f}' for each in one),
        *(f'{images / each:.1f}' for each in reversed(one))]
    assert figures(r'60,000 steps of 0.35 to 0.60 s are ([\d.]+) to ([\d.]+)') == hours(60000, *GPUS[1])
    assert figures(r'100,000 of 0.25 to 0.35 s are ([\d.]+) to ([\d.]+)') == hours(100000, 0.25, 0.35)
    assert figures(r'two GPUs are ([\d.]+) to ([\d.]+) hours') == hours(30000, *(2 * each for each in GPUS[2]))
    assert figures(r'2.5; ([\d.]+) to ([\d.]+) if not') == hours(30000, *GPUS[2])
    assert figures(r'30,000 steps are (\d+), (\d+) and (\d+) epochs') == [
        f'{30000 * 128 * count / 50000:.0f}' for count in (2, 3, 4)]


def losses(program, *changes):
    """Runs a program of the page, with texts replaced; returns its output and its losses."""
    for old, new in changes:
        assert old in program
        program = program.replace(old, new)
    result = python('-c', program)
    assert result.returncode == 0, result.stderr
    return result.stdout, np.array(re.findall(r'loss = ([\d.]+)', result.stdout), float)


@pytest.mark.stress
def test_the_parabola_has_the_same_losses_on_two_devices():
    text, alone = losses(ALONE)
    begin, end = PRINTED.split('...\n')
    assert text.startswith(begin) and text.endswith(end)
    assert len(alone) == 41 and alone[-1] < 0.01 * alone[0]
    np.testing.assert_allclose(losses(TOWERS)[1], alone, atol=2e-4)


def test_few_lines_are_changed_to_parallelise_the_parabola():
    added = [line for line in difflib.ndiff(ALONE.splitlines(), TOWERS.splitlines()) if line.startswith('+ ')]
    assert len([line for line in added if line.strip('+ ')]) <= 16


def test_variables_that_towers_do_not_share_are_refused():
    def tower(k, scope):
        weight = tf.Variable(1.0)
        return [(tf.gradients(tf.square(weight), weight)[0], weight)]

    grads = build_towers(['/cpu:0', '/cpu:0'], tower)
    assert len(tf.trainable_variables()) == 2
    with pytest.raises(ValueError, match='tower 1 does not have the variables of tower 0'):
        average_gradients(grads)
