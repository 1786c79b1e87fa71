"""The benchmarks: that they measure a real run, and compute what they print. No timed assertion."""
import json
import subprocess
import sys

import pytest

from benchmarks import convergence, scaling
from tests.conftest import ROOT


def run(script, *arguments):
    command = [sys.executable, str(ROOT / 'benchmarks' / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_scaling_measures_real_runs_and_goes_on_after_a_failure(data_dir, tmp_path):
    result = run('scaling.py', '--dataset=shapes', '--data_dir=' + data_dir, '--tower_device=cpu', '--towers=2',
                 '--modes=parameter_server,nonsense', '--global_batch=16', '--steps=6', '--rounds=1',
                 '--json=%s' % (tmp_path / 'out.json'))
    assert result.returncode == 0
    error, = result.stderr.strip().splitlines()
    assert error.startswith('nonsense, 2 towers: ') and '--variable_update=nonsense is unknown' in error
    rates = json.loads((tmp_path / 'out.json').read_text())['images_per_sec']
    assert rates['parameter_server']['2'][0] > 0 and rates['nonsense']['2'] == []
    assert '| `nonsense` | failed |' in result.stdout


def test_scaling_pairs_rounds():
    lines = scaling.table({'parameter_server': {1: [100.0, 200.0, 300.0]}, 'async': {1: [110.0, 180.0, 330.0]}}, [1])
    assert lines[2:] == ['| `parameter_server` | 200, 100-300 (1.00) |', '| `async` | 180, 110-330 (1.10) |']


def test_convergence_compares_at_equal_images_and_seconds():
    fast, slow = [(100, 1.0, 0.2), (200, 2.0, 0.4)], [(100, 2.0, 0.3), (200, 4.0, 0.5)]
    assert convergence.at(slow, 1, 3.0) == pytest.approx(0.4)
    lines = convergence.report({('async', False): [fast], ('parameter_server', False): [slow],
                                ('async', True): [fast], ('parameter_server', True): [slow]})
    assert lines[2] == '| alike | `parameter_server` | 50 | 50.0% (50.0-50.0) | 30.0% (30.0-30.0) of 2 s |'
    assert lines[3] == '| alike | `async` | 100 | 40.0% (40.0-40.0) | 40.0% (40.0-40.0) of 2 s |'


def test_convergence_runs_with_a_slowed_tower(data_dir):
    result = run('convergence.py', '--dataset=shapes', '--data_dir=' + data_dir, '--images=1280', '--every=640',
                 '--one', 'async', '0.01', '0')
    assert result.returncode == 0, result.stderr
    images, seconds, accuracy = json.loads(result.stdout.splitlines()[-1])[0]
    assert 640 <= images <= 1280 and seconds > 0 and 0 <= accuracy <= 1
