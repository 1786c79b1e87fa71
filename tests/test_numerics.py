"""Records of settings outside a run's flags that affect its bits: oneDNN, threads and environment variables."""
import json
import os
import platform

import pytest

from cifar10.base import startup
from cifar10.run.folder import look
from tests.helpers import planned, python

ONEDNN = 'TF_ENABLE_ONEDNN_OPTS'
NUMERICAL = dict(
    TF_DETERMINISTIC_OPS='0', TF_XLA_FLAGS='--tf_xla_min_cluster_size=4', XLA_FLAGS='', NVIDIA_TF32_OVERRIDE='0',
    TF_CUDNN_DETERMINISTIC='1', CUBLAS_WORKSPACE_CONFIG=':16:8', ONEDNN_MAX_CPU_ISA='ALL')
START = ('import sys\n{}\nfrom cifar10.base import startup\nstartup.start_tensorflow()\n'
         'print(startup.numerics()["oneDNN"])')


def started(before='', **environment):
    """Starts TensorFlow in a process; returns (the value of oneDNN, the lines printed before it)."""
    given = {name: value for name, value in os.environ.items() if name != ONEDNN}
    result = python('-c', START.format(before), environment={**given, **environment})
    assert result.returncode == 0, result.stderr
    *lines, said = result.stdout.splitlines()
    return said, lines


@pytest.mark.skipif(platform.machine() != 'x86_64', reason='oneDNN is turned on where it was measured')
def test_tensorflow_is_started_with_onednn():
    assert startup.numerics()['oneDNN'] == 'on'


@pytest.mark.stress
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='oneDNN is turned on where it was measured')
def test_onednn_is_on_unless_the_user_turns_it_off():
    assert started() == ('on', [])
    assert started(**{ONEDNN: '0'}) == ('off', [])


@pytest.mark.stress
@pytest.mark.skipif(platform.machine() != 'x86_64', reason='oneDNN is turned on where it was measured')
def test_a_warning_reports_that_tensorflow_was_imported_without_onednn():
    said, lines = started('import tensorflow')
    if said == 'off':
        line, = lines
        assert line.startswith('warning: steps on CPUs are slower ') and f'set {ONEDNN}=1' in line
    else:  # TensorFlow itself turns it on for this CPU's instructions
        assert not lines


def test_numerical_settings_are_recorded_and_a_resume_reports_changes(one_step, settings, monkeypatch):
    before = look(settings().run.train_dir).record.numerics
    assert before == {'oneDNN': before['oneDNN'], 'threads': str(len(os.sched_getaffinity(0)))}
    assert not any(line.startswith('changed ') for line in planned(settings(max_steps=2))[1])
    for name, value in NUMERICAL.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv('TF_NUM_INTRAOP_THREADS', '7')
    assert startup.numerics() == {**before, **NUMERICAL, 'threads': '7'}
    line, = [line for line in planned(settings(max_steps=2))[1] if line.startswith('changed ')]
    assert f"threads={before['threads']} (now 7)" in line
    assert all(f'no {name} (now {value})' in line for name, value in NUMERICAL.items())


def test_a_changed_tensorflow_or_processor_is_reported(one_step, settings):
    path = os.path.join(settings().run.train_dir, 'metrics.jsonl')
    lines = [json.loads(line) for line in open(path)]
    for record in lines:
        record.get('versions', {}).update(TensorFlow='2.15.0', CPU='a slide rule')
    with open(path, 'w') as stream:
        stream.writelines(json.dumps(record) + '\n' for record in lines)
    now = startup.versions(on_gpus=False)
    assert any(line.startswith(f"changed    TensorFlow=2.15.0 (now {now['TensorFlow']}), CPU=a slide rule (now ")
               for line in planned(settings(max_steps=2))[1])
