"""The GPU paths on stand-in GPUs (`tests/standin_gpu`): the bits of CPU devices, copies between devices, used memory.

Real GPUs produce different bits; tests/test_gpu.py tests them.
"""
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests import helpers, standin_gpu
from tests.helpers import ROOT, WITH_GPUS, Tasks, assert_same_bits, last_variables, patient
from tests.standin_gpu import HOST

pytestmark = [pytest.mark.classic, pytest.mark.stress]  # devices of operations are tested by default: test_placement.py
# Trains runs one by one in one process, on devices of a given type. Prints as JSON, for each run, the total copies
# before each step: lists of (from, to, copies, bytes).
TRAIN = """
import json, sys, time
from cifar10.base import startup
startup.start_tensorflow()
import tensorflow as tf
from cifar10.training import trainer
from cifar10.parallel import devices, gpus
from cifar10.settings.training import train_settings
from tests import standin_gpu

class Meter:
    '''Notes what has been copied each time that the loop asks it whether a signal has come.'''
    def __init__(self):
        self.notes = []
    def defer(self):
        pass
    @property
    def requested(self):
        if kind == 'gpu':
            copies, before = standin_gpu.report().copies, None
            while copies != before:  # batches are still being copied ahead of the step
                time.sleep(0.05)
                copies, before = standin_gpu.report().copies, copies
            self.notes.append([[*way, *count] for way, count in copies.items()])
        return False

kind, runs = sys.argv[1], json.loads(sys.argv[2])
if kind == 'cpu':  # where tf.distribute finds them
    cpu, = tf.config.list_physical_devices('CPU')
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
gpus.claim(4 if kind == 'gpu' else 0)
copied = {}
for name, given in runs:
    settings = train_settings(tower_device=kind, **given)
    meter = Meter()
    towers = settings.towers
    trainer.train(settings, meter, devices.choose(towers.num_gpus, kind, towers.gpus_per_tower))
    copied[name] = meter.notes
print('copied', json.dumps(copied))
"""


@pytest.fixture(scope='session')
def gpus():
    """The environment of a process with four stand-in GPUs."""
    try:
        environment = dict(WITH_GPUS, **standin_gpu.environment())
    except standin_gpu.Unavailable as error:
        pytest.skip(str(error))
    environment.pop('CUDA_VISIBLE_DEVICES', None)  # it selects among real GPUs
    return environment


def python(environment, *arguments):
    """Runs Python to its end; returns its output."""
    result = helpers.python(*arguments, environment=environment, seconds=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture
def train(gpus, data_dir, tmp_path):
    """A function that trains runs in one process and returns, for each run, the total copies before each step.

    Its arguments are 'gpu' or 'cpu' and (name, settings) pairs; runs of the same name and type continue each other.
    """
    def run(kind, *runs):
        small = dict(dataset='shapes', data_dir=data_dir, batch_size=8, max_steps=5, summary_steps=0)
        runs = [(name, dict(small, train_dir=str(tmp_path / kind / name), **changes)) for name, changes in runs]
        (tmp_path / kind).mkdir(exist_ok=True)
        output = python(gpus, '-c', TRAIN, kind, json.dumps(runs))
        return {name: [{(source, target): np.array(counts) for source, target, *counts in note} for note in notes]
                for name, notes in json.loads(output.partition('copied ')[2]).items()}
    return run


def of_a_step(notes):
    """Returns (from, to) -> (copies, bytes) of a step, from the notes of a run; the first two steps differ."""
    before, after = notes[2], notes[-1]
    increases = {way: (counts - before.get(way, 0)) / (len(notes) - 3) for way, counts in after.items()}
    return {way: tuple(counts) for way, counts in increases.items() if counts.any()}


def assert_same_runs(folder, *names):
    """Asserts that runs ended with the same variables on GPUs and on CPU devices."""
    for name in names:
        try:
            assert_same_bits(last_variables(folder / 'gpu' / name), last_variables(folder / 'cpu' / name))
        except AssertionError as error:
            raise AssertionError(f'{name}: {error}') from error


# --------------------------------------------------------------------------------- the same bits, and the transfers

RUNS = [
    ('parameter_server', dict(num_gpus=3)),
    ('replicated', dict(num_gpus=3, variable_update='replicated')),
    # With more than two devices, tf.distribute sums gradients in different orders on CPU devices and on GPUs.
    ('mirrored', dict(num_gpus=2, variable_update='mirrored')),
    # Steps 34 and 35, between the averages after steps 32 and 36.
    ('local', dict(num_gpus=3, variable_update='local', local_steps=100, max_steps=36)),
    ('in turn', dict(num_gpus=2, num_towers=4)),
    ('in parts', dict(num_gpus=2, gpus_per_tower=2)),
    ('fp16', dict(num_gpus=2, precision='fp16', variable_update='replicated')),
    ('fast', dict(num_gpus=2, preset='fast', precision='fp32', variable_update='replicated', max_steps=None,
                  epochs=5 * 16 / 1000)),
]
VARIABLES = 4 * (5 * 5 * 3 * 64 + 64 + 5 * 5 * 64 * 64 + 64 + 2304 * 384 + 384 + 384 * 192 + 192 + 192 * 10 + 10)
FIRST_PART = 4 * (5 * 5 * 3 * 64 + 64 + 5 * 5 * 64 * 64 + 64)  # the variables of both convolutions
SECOND_PART = VARIABLES - FIRST_PART
POOLED = 8 * 6 * 6 * 64 * 4  # the first part's output for the second
LABELS = 8 * 4
BATCH = 8 * 24 * 24 * 3 * 4 + LABELS  # images and labels
SCALARS = 4 * 7  # a tower's losses and accuracy
RATE = 4
STEP = 8
# (from, to) -> (copies, bytes) of a step between the host and the GPUs.
WITH_HOST = {
    # Ten variables, images and labels to a GPU; two packed gradients and the scalars back.
    'parameter_server': {**{(HOST, k): (12, VARIABLES + BATCH) for k in range(3)},
                         **{(k, HOST): (3, VARIABLES + SCALARS) for k in range(3)}},
    'local': {**{(HOST, k): (3, BATCH + RATE) for k in range(3)}, **{(k, HOST): (1, SCALARS) for k in range(3)}},
    # Each tower reads the variables separately, in its turn.
    'in turn': {**{(HOST, k): (24, 2 * (VARIABLES + BATCH)) for k in range(2)},
                **{(k, HOST): (6, 2 * (VARIABLES + SCALARS)) for k in range(2)}},
    # Images, labels, the learning rate, and to GPU 0 the step, for the decay of the moving averages.
    'replicated': {(HOST, 0): (4, BATCH + RATE + STEP), **{(HOST, k): (3, BATCH + RATE) for k in (1, 2)},
                   **{(k, HOST): (1, SCALARS) for k in range(3)}},
    # As in `replicated`, and nine constants of tf.distribute, because its steps fold no constants.
    'mirrored': {(HOST, 0): (4 + 9, BATCH + RATE + STEP + 9 * 8), (HOST, 1): (3 + 9, BATCH + RATE + 9 * 8),
                 **{(k, HOST): (1 + 9, SCALARS + 9 * 4) for k in range(2)}},
    # Each GPU gets the variables of its part and sends their gradients; small gradients are packed there. The second
    # GPU computes the loss.
    'in parts': {(HOST, 0): (6, FIRST_PART + BATCH), (0, HOST): (1, FIRST_PART),
                 (HOST, 1): (6, SECOND_PART), (1, HOST): (3, SECOND_PART + SCALARS)}}
# The same, between two GPUs.
BETWEEN_GPUS = {
    **{name: {} for name in ('parameter_server', 'local', 'in turn')},
    # The activations, 6 x 6 x 64 per image, with the labels, and their gradients back.
    'in parts': {(0, 1): (2, POOLED + LABELS), (1, 0): (1, POOLED)}}
# Gradients in a ring: devices, reduced bytes as a multiple of the variables' bytes, messages. In `replicated`, the
# powers go first, as float32, and then the sums, as float64; two towers need neither.
RINGS = {'replicated': (3, 3, 16), 'mirrored': (2, 1, 2), 'fp16': (2, 1, 4)}


def check_what_travels(name, ways):
    """Asserts that a step of a run copies exactly the entries of the tables above.

    Args:
      name: of RUNS.
      ways: (from, to) -> (copies, bytes) of a step.
    """
    between = {way: counts for way, counts in ways.items() if HOST not in way}
    if name in WITH_HOST:
        assert {way: counts for way, counts in ways.items() if HOST in way} == WITH_HOST[name], name
    if name in BETWEEN_GPUS:
        assert between == BETWEEN_GPUS[name], name
    if name in RINGS:
        count, rounds, messages = RINGS[name]
        assert between.keys() == {(k, (k + 1) % count) for k in range(count)}
        for copies, size in between.values():  # each GPU sends 2 P (D - 1) / D bytes, up to rounding of its chunks
            assert copies == messages and abs(size - rounds * 2 * VARIABLES * (count - 1) / count) < 1000


def test_every_mode_has_the_bits_of_cpu_devices_and_minimal_transfers(train, tmp_path):
    for name, notes in train('gpu', *RUNS).items():
        check_what_travels(name, of_a_step(notes[31:] if name == 'local' else notes))
    train('cpu', *RUNS)
    assert_same_runs(tmp_path, *(name for name, _ in RUNS))


def test_a_cluster_of_gpus_and_a_moved_run_have_the_bits_of_one_cpu_device(gpus, train, data_dir, tmp_path):
    train('gpu', *(('moved', dict(num_gpus=count, max_steps=steps)) for count, steps in ((4, 2), (3, 4))))
    (tmp_path / 'cpu').mkdir()
    (tmp_path / 'gpu' / 'moved').rename(tmp_path / 'cpu' / 'moved')
    train('cpu', ('moved', dict(num_gpus=2, max_steps=6)), ('stayed', dict(num_gpus=1, num_towers=4, max_steps=6)))
    stayed = last_variables(tmp_path / 'cpu' / 'stayed')
    assert_same_bits(last_variables(tmp_path / 'cpu' / 'moved'), stayed)
    assert_same_bits(cluster_of_gpus(gpus, data_dir, tmp_path / 'cluster', max_steps=6), stayed)


def cluster_of_gpus(gpus, data_dir, train_dir, **changes):
    """Trains on two workers with two stand-in GPUs each; returns the last variables."""
    flags = dict(dataset='shapes', data_dir=data_dir, train_dir=train_dir, num_gpus=2, batch_size=8, summary_steps=0,
                 tower_device='gpu', **changes)
    with Tasks(environment=dict(gpus, STANDIN_MB='512', CUDA_VISIBLE_DEVICES='2,5'), **flags) as tasks:
        ends = tasks.ends()
    for _, output in ends.values():
        assert 'devices    2 GPUs (CUDA_VISIBLE_DEVICES=2,5): /gpu:0 /gpu:1\n' in output
    assert all(status == 0 for status, _ in ends.values()), ends
    assert any('on 4 GPUs' in output for _, output in ends.values()), ends
    return last_variables(train_dir)


EVALUATE = """
import sys
from cifar10.programs import eval
kind, checkpoint_dir, eval_dir, image = sys.argv[1:]
common = ['', '--checkpoint_dir=' + checkpoint_dir, '--tower_device=' + kind]
for more in (['--eval_dir=' + eval_dir, '--run_once', '--num_examples=100'], ['--image', image],
             ['--export_dir=' + eval_dir + '/exported']):
    sys.argv = common + more
    status = eval.run()
    if status:
        sys.exit(status)
"""
ANSWER = """
import sys
import numpy as np
import tensorflow as tf
images = tf.constant(np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8))
for folder in sys.argv[1:]:
    answer = tf.saved_model.load(folder).signatures['serving_default'](images=images)
    print({name: value.numpy().tolist() for name, value in sorted(answer.items())})
"""


def test_evaluation_classification_and_export_match_cpu_devices(gpus, settings, tmp_path):
    helpers.train(settings(max_steps=2))
    printed = []
    for kind in ('gpu', 'cpu'):
        folder = tmp_path / f'on_{kind}'
        lines = python(gpus, '-c', EVALUATE, kind, tmp_path / 'train', folder, ROOT / 'docs' / 'fast.png')
        device, rest = re.sub(r'\d{4}-\S+ [\d:.]+' + f'|{folder}', '...', lines).split('\n', 1)
        assert device.startswith(f'device     1 {kind.upper()}')
        printed.append(rest)
    assert printed[0] == printed[1] and 'precision @ 1' in printed[0]
    exported = [tmp_path / f'on_{kind}' / 'exported' for kind in ('gpu', 'cpu')]
    answers = python(gpus, '-c', ANSWER, *exported).splitlines()
    assert answers[0] == answers[1] and 'probabilities' in answers[0]


# ------------------------------------------------------------------------------------------------------ which memory

USE = """
import runpy, sys
from tests import standin_gpu
try:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name='__main__')
finally:
    print('allocated', sorted(standin_gpu.report().allocated.items()))
"""


def test_processes_share_gpus_and_take_only_the_memory_they_need(gpus, settings, data_dir, tmp_path):
    helpers.train(settings(num_gpus=2))
    trainer = ['multi_gpu_train.py', '--dataset=shapes', '--data_dir=' + data_dir, f"--train_dir={tmp_path / 'train'}",
               '--max_steps=6', '--tower_device=gpu', '--num_gpus=2']
    evaluator = ['cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", f"--eval_dir={tmp_path / 'eval'}",
                 '--run_once', '--num_examples=8', '--batch_size=8', '--tower_device=gpu']
    started = [subprocess.Popen([sys.executable, '-c', USE, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                text=True, cwd=ROOT, env=gpus) for command in (trainer, evaluator)]
    for process, count in zip(started, (2, 1)):
        output, _ = process.communicate(timeout=patient(120))
        assert process.returncode == 0, output
        allocated = dict(map(eval, re.findall(r'\(\d+, \d+\)', output.rpartition('allocated ')[2])))
        assert sorted(allocated) == list(range(count)), output
        for size in allocated.values():
            assert 0 < size < 500 << 20, allocated


def test_the_tests_for_real_gpus_pass_on_stand_ins(gpus):
    output = python(gpus, '-m', 'pytest', '-m', 'gpu', '-n', '0', '-k', 'not rate', 'tests/test_gpu.py')
    assert re.search(r'\b8 passed', output), output  # there is no nvidia-smi
