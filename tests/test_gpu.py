"""Tests of behaviour that only real GPUs show; run `pytest -m gpu -n 0 -s` on a machine with a GPU.

Every test starts processes that see the GPUs. A single GPU is split into four logical GPUs. NCCL joins whole GPUs only,
so its test needs two.
"""
import json
import re

import numpy as np
import pytest

from tests import helpers
from tests.helpers import (
    WITH_GPUS,
    assert_close,
    assert_same_bits,
    last_variables,
)

pytestmark = pytest.mark.gpu

MODES = ['parameter_server', 'replicated', 'async', 'mirrored']
TOWERS = 4
# Full float32 products on GPUs; recent GPUs round the factors to TF32 by default.
FULL_FLOAT32 = dict(NVIDIA_TF32_OVERRIDE='0')
# The parts of a GPU share one cuBLAS, which is deterministic on several streams only with such a workspace.
REPEATING = dict(CUBLAS_WORKSPACE_CONFIG=':4096:8')
# Trains with settings from JSON; the first GPU is split into logical ones if there are too few.
TRAIN = """
import json, sys
from cifar10.base import startup
from cifar10.programs import program
def main():
    startup.start_tensorflow()
    import tensorflow as tf
    from cifar10.training import trainer
    from cifar10.settings.training import train_settings
    settings = json.loads(sys.argv[1])
    gpus = tf.config.list_physical_devices('GPU')
    if settings['tower_device'] == 'gpu' and len(gpus) < settings['num_gpus']:
        parts = [tf.config.LogicalDeviceConfiguration(memory_limit=2048)] * settings['num_gpus']
        tf.config.set_logical_device_configuration(gpus[0], parts)
    trainer.train(train_settings(**settings))
sys.exit(program.run(main))
"""


def python(*arguments, **environment):
    """Runs Python with visible GPUs; returns the CompletedProcess."""
    return helpers.python(*arguments, environment=dict(WITH_GPUS, **environment), seconds=300)


@pytest.fixture(scope='module', autouse=True)
def gpus():
    """The number of GPUs."""
    result = python('-c', 'import tensorflow as tf; print(len(tf.config.list_physical_devices("GPU")))')
    count = int(result.stdout.split()[-1]) if result.stdout.split() else 0
    if not count:
        pytest.skip('TensorFlow finds no GPU here')
    return count


@pytest.fixture
def train(data_dir, tmp_path):
    """A function that trains in a process and returns (the arrays of the newest checkpoint, the output)."""
    def run(name, environment=FULL_FLOAT32, **changes):
        settings = dict(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path / name), num_gpus=TOWERS,
                        batch_size=8, max_steps=10, tower_device='gpu', summary_steps=0)
        settings.update(changes)
        result = python('-c', TRAIN, json.dumps(settings), **environment)
        assert result.returncode == 0, result.stdout + result.stderr
        return last_variables(settings['train_dir']), result.stdout
    return run


@pytest.mark.parametrize('mode', MODES)
def test_each_mode_trains_on_gpus_as_on_cpu_devices(mode, train):
    found, output = train('gpu', variable_update=mode)
    assert re.search(rf'towers     {TOWERS} on {TOWERS} GPUs.*: /gpu:0 /gpu:1 /gpu:2 /gpu:3\n', output)
    if mode == 'async':  # its order of updates varies
        assert found['global_step'] == 10 and all(np.isfinite(array).all() for array in found.values())
        return
    expected, _ = train('cpu', variable_update=mode, tower_device='cpu')
    assert_close(found, expected)


def test_deterministic_runs_give_the_same_bits_on_gpus(train):
    one, other = [train(name, REPEATING, deterministic=True, max_steps=60)[0] for name in ('one', 'other')]
    assert_same_bits(one, other)


def test_a_killed_deterministic_run_resumes_to_the_bit_on_gpus(train):
    whole, _ = train('whole', REPEATING, deterministic=True, max_steps=40)
    train('broken', REPEATING, deterministic=True, max_steps=20)
    assert_same_bits(train('broken', REPEATING, deterministic=True, max_steps=40)[0], whole)


CLAIMED = """
from cifar10.base import startup; startup.start_tensorflow()
import tensorflow as tf
from cifar10.parallel import devices, gpus
gpus.claim(devices.choose(%d, %r).num_gpus)
print([(gpu.name, tf.config.experimental.get_memory_growth(gpu)) for gpu in tf.config.get_visible_devices('GPU')])
"""


def test_only_used_gpus_are_visible_and_their_memory_grows():
    assert python('-c', CLAIMED % (1, 'gpu')).stdout == "[('/physical_device:GPU:0', True)]\n"
    assert python('-c', CLAIMED % (2, 'cpu')).stdout == '[]\n'


def test_several_gpus_reduce_through_nccl(gpus, train):
    if gpus < 2:
        pytest.skip('there is one GPU alone, and NCCL joins whole GPUs')
    found, _ = train('nccl', variable_update='replicated', num_gpus=2)
    expected, _ = train('cpu', variable_update='replicated', num_gpus=2, tower_device='cpu')
    assert_close(found, expected)
