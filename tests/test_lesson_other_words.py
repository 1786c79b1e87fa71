"""Lesson 12: four devices take the step of one in each installed framework, and the page shows the output.

The programs for PyTorch and JAX are tested if these frameworks are installed.
"""
import importlib.util
import re

import numpy as np
import pytest

from tests.helpers import ROOT, python
from tests.learn_pages import assert_on_page

X = np.arange(1, 9)


def run(*command):
    """Runs a program of lessons/ and returns its standard output; it must not print to standard error."""
    result = python(*command)
    assert result.returncode == 0 and result.stderr == '', result.stderr
    return result.stdout


def rows(text):
    """Returns {name: numbers} of the rows of tables."""
    found = re.findall(r'^  (\S.*?) {2,}((?:-?\d+\.\d+ *)+)', text, re.M)
    return {name: [float(number) for number in numbers.split()] for name, numbers in found}


def w_after(rate, shares):
    """Returns w after one update from 0 with the average of the gradients of the shares' mean losses."""
    return -rate * np.mean([2 * np.mean(0 - np.asarray(share)) for share in shares])


def assert_steps(table, names):
    """Asserts that each row has NumPy's loss at 0, and NumPy's w after three updates on the whole batch."""
    w = [0.0]
    for _ in range(3):
        w.append(w[-1] - 0.1 * np.mean(2 * (w[-1] - X)))
    for name in names:
        np.testing.assert_allclose(table[name], [np.mean(X ** 2), *w[1:]], atol=5e-4)


@pytest.mark.stress
def test_one_device_and_four_take_the_same_steps_and_mistakes_change_them():
    text = run('lessons/other_words.py')
    assert_on_page('python lessons/other_words.py', text)
    table = rows(text)
    assert_steps(table, ['by hand', *(f'{way}, {count}' for way in ('graph towers', 'tf.distribute', 'Keras')
                                      for count in (1, 4))])
    right = 0.2 * X.mean()
    measured = {'no mistake': right, 'one device of four': right, 'means are added': 4 * right,
                'same batch for all': 4 * right, 'uneven shares': w_after(0.1, [[1, 2], [3, 4], [5], [6]]),
                'own statistics': 0.2 * 0.5}
    for name, w in measured.items():
        np.testing.assert_allclose(table[name][2:], [w, w], atol=5e-4)
    assert table['uneven shares'][1] == pytest.approx(0.2 * 3.5) and table['own statistics'][1] == 0.458


needs_torch = pytest.mark.skipif(not importlib.util.find_spec('torch'), reason='PyTorch is not installed')
needs_jax = pytest.mark.skipif(not importlib.util.find_spec('jax'), reason='JAX is not installed')


@needs_torch
@pytest.mark.stress
def test_ddp_takes_the_same_steps():
    text = run('lessons/in_other_words/ddp.py')
    assert_on_page('python lessons/in_other_words/ddp.py', text)
    table = rows(text)
    assert_steps(table, ['PyTorch DDP, 1', 'PyTorch DDP, 4'])
    assert [table[name][-1] for name in ('no sampler', 'sum of the share', 'uneven shares', 'own statistics')] == [
        0.3, 1.8, 0.8, 0.1]


@needs_jax
@pytest.mark.stress
def test_shard_map_takes_the_same_steps():
    text = run('lessons/in_other_words/jax_shard_map.py')
    assert_on_page('python lessons/in_other_words/jax_shard_map.py', text)
    assert_steps(rows(text), ['JAX shard_map, 1', 'JAX shard_map, 4'])


@pytest.mark.parametrize('name, framework', [('ddp.py', 'torch'), ('jax_shard_map.py', 'jax')])
def test_programs_of_other_frameworks_do_not_import_this_project(name, framework):
    text = (ROOT / 'lessons' / 'in_other_words' / name).read_text()
    assert f'import {framework}\n' in text and not re.search(r'cifar10|^(import|from) (tensorflow|lessons)', text, re.M)
