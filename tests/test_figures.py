"""Figures of the pages that a program prints or computes: each is compared with the program.

What was measured carries its command on the page instead; what lessons and examples print is compared in their tests.
"""
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.cluster import membership
from cifar10.model import classic
from cifar10.settings.definition import fields
from cifar10.settings.presets import PRESETS, RATES
from cifar10.settings.training import GROUPS
from cifar10.training import loop
from tests.helpers import ROOT

IMAGES = 50000  # CIFAR-10's for training
DEFAULTS = {field.name: field.default for field in fields(*GROUPS)}


def megabytes(name='', copies=1):
    """Returns the size of the classic network's variables whose names hold a text, in MB."""
    with tf.Graph().as_default():
        classic.inference(tf.zeros([1, 24, 24, 3]))
        return copies * 4e-6 * sum(np.prod(each.shape) for each in tf.trainable_variables() if name in each.op.name)


FIGURES = [
    ('clusters.md', r'processes have been lost (\d+) times since', lambda: loop._MOST_ATTEMPTS + 1),
    ('scaling.md', r'variables\s+of\s+P\s+bytes\s+\(([\d.]+) MB', lambda: f'{megabytes():.2f}'),
    ('scaling.md', r'`local3/weights` has (\d+)%', lambda: f"{100 * megabytes('local3/weights') / megabytes():.0f}"),
    ('install.md', r'A checkpoint of the classic network takes ([\d.]+) MB', lambda: f'{megabytes(copies=2):.1f}'),
    ('clusters.md', r'ports are between (\d+) and', lambda: min(membership.port_base(job, 0) for job in range(1000))),
    ('clusters.md', r'ports are between \d+ and (\d+)', lambda: max(
        membership.port_base(job, 0) + membership._BLOCK_SIZE for job in range(1000)))]


@pytest.mark.parametrize('page, pattern, printed', FIGURES, ids=[f'{page}: {pattern}' for page, pattern, _ in FIGURES])
def test_a_figure_of_a_page_is_the_programs(page, pattern, printed):
    shown, = re.findall(pattern, (ROOT / 'docs' / page).read_text())
    assert shown == str(printed())


def table(page, first):
    """Returns {name: cells} of the rows of a page's table whose header begins with some cells."""
    text = (ROOT / 'docs' / page).read_text().split(f'\n{first}', 1)[1].split('\n\n')[0]
    rows = [[cell.strip() for cell in line.strip('|').split('|')] for line in text.splitlines()[2:]]
    return {name: cells for name, *cells in rows}


def written(value):
    """Returns a setting as the pages write it; nothing for one that has no value."""
    if isinstance(value, float):
        return f'{value:g}'
    return {None: '', True: 'true', False: 'false'}[value] if value is None or isinstance(value, bool) else (
        value if isinstance(value, str) else f'{value:,}')


def test_the_table_of_the_presets_has_their_settings():
    rows = table('flags.md', '| | ' + ' | '.join(f'`{preset}`' for preset in PRESETS) + ' |')
    assert {flag for names in rows for flag in re.findall(r'--(\w+)', names)} == set().union(*PRESETS.values())
    for names, cells in rows.items():
        for preset, cell in zip(PRESETS, cells):
            for flag in re.findall(r'--(\w+)', names):
                assert written(PRESETS[preset].get(flag, DEFAULTS[flag])) in cell, (flag, preset)


def test_the_table_of_rates_has_the_optimizers_defaults():
    cells, = table('flags.md', '| | `sgd` |').values()
    assert cells == [f'{RATES[name].learning_rate:g}' for name in (
        'sgd', 'momentum', 'nesterov', 'adam', 'adamw', 'muon')]
