"""Helpers for several tests: run scripts as real processes, and read checkpoints and event files as arrays."""
import contextlib
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import time
import urllib.request

import numpy as np
import pytest

from cifar10.base import startup

# The default tests use CPU devices, even if GPUs are present; tests marked `gpu` start processes that see the GPUs.
# pytest's workers inherit the variable from the first process, which stores it under another name.
_VISIBLE = 'CUDA_VISIBLE_DEVICES'
_OURS = 'TESTS_' + _VISIBLE
if _OURS not in os.environ:
    os.environ[_OURS] = json.dumps(os.environ.get(_VISIBLE))
WITH_GPUS = {name: value for name, value in os.environ.items() if name != _VISIBLE}
if json.loads(os.environ[_OURS]) is not None:
    WITH_GPUS[_VISIBLE] = json.loads(os.environ[_OURS])
os.environ[_VISIBLE] = '-1'

# A shell that runs the tests in the background ignores these signals, and child processes inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

startup.start_tensorflow()

import tensorflow.compat.v1 as tf  # noqa: E402

# `tf.distribute` caches the list of CPU devices on its first use in a process.
tf.config.set_logical_device_configuration(tf.config.list_physical_devices('CPU')[0],
                                           [tf.config.LogicalDeviceConfiguration()] * 8)

from cifar10.base.registry import UPDATE_MODES  # noqa: E402
from cifar10.data import datasets  # noqa: E402
from cifar10.data.images import Images  # noqa: E402
from cifar10.evaluation import of_checkpoints  # noqa: E402
from cifar10.model.network_draws import at_position  # noqa: E402
from cifar10.model.recipe import Recipe  # noqa: E402
from cifar10.parallel.devices import Devices  # noqa: E402
from cifar10.programs import local_cluster  # noqa: E402
from cifar10.run import metrics  # noqa: E402
from cifar10.run.checkpoints import digest_of, remove  # noqa: E402
from cifar10.run.folder import best_of, glance, look, prefix_of  # noqa: E402
from cifar10.settings.evaluation import eval_settings  # noqa: E402
from cifar10.settings.training import train_settings  # noqa: E402
from cifar10.training import decisions, graph, trainer  # noqa: E402
from cifar10.training.decisions import decided  # noqa: E402
from cifar10.training.plan import plan_of as plan_of_run  # noqa: E402
from cifar10.training.start import prepared  # noqa: E402
from tests import linear, networks  # noqa: E402
from tests.forked import Forked  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINEAR = f'{ROOT}/tests/linear.py:network'  # for processes of tests that do not depend on the network
linear.register()
networks.register()


@contextlib.contextmanager
def small_disk(folder, megabytes):
    """Context that mounts a small disk at a new folder; skips the test if this user may not mount it."""
    folder.mkdir()
    command = ['mount', '-t', 'tmpfs', '-o', f'size={megabytes}m,mode=755', 'tmpfs', str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip('mounting a small disk needs more rights than this user has')
    try:
        yield folder
    finally:
        subprocess.run(['umount', str(folder)], check=True)


def update_mode(name, devices, *local_steps):
    """Returns a new update mode on devices: a Devices, or a list of the towers' device names."""
    if not isinstance(devices, Devices):
        devices = Devices(tuple((device,) for device in devices), on_gpus='gpu' in devices[0])
    return UPDATE_MODES.load(name)(devices, *local_steps)


def build_training(config, data, devices, mode):
    """Builds the training graph of a config in the current graph."""
    plan = plan_of(config, data, devices, mode)
    return graph.build(plan, plan.recipe.learnt(plan.source))


def plan_of(config, data, devices, mode):
    """Returns the Plan of a short new run."""
    config = decided(config, mode.devices, before={})
    return plan_of_run(config, data, devices)._replace(devices=devices, mode=mode)


def ancestors(op):
    """Returns the operations that an operation depends on."""
    operations = set()
    pending = [op]
    while pending:
        current = pending.pop()
        inputs = {tensor.op for tensor in current.inputs} | set(current.control_inputs)
        pending += inputs - operations
        operations |= inputs
    return operations


def initialise(session):
    """Initialises the variables as the loop does: global variables first, then local ones."""
    session.run(tf.global_variables_initializer())
    session.run(tf.local_variables_initializer())


def value_of(fetches):
    """Returns the values of tensors, with all variables at their initial values."""
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


@contextlib.contextmanager
def stepping(mode, devices, tower_fn, make_optimizer, *local_steps):
    """Builds towers in an update mode; yields (a session with all variables initialised, the Step).

    Args:
      mode, devices, local_steps: see `update_mode`.
      tower_fn, make_optimizer: see `UpdateMode.build`.
    """
    update = update_mode(mode, devices, *local_steps)
    step = update.build(tower_fn, make_optimizer, tf.train.create_global_step())
    config = tf.ConfigProto(device_count={'CPU': update.devices.count}, allow_soft_placement=True)
    with update.scope(), tf.Session(config=config) as session:
        initialise(session)
        yield session, step


def values_by_name():
    """Returns {name: current value} of all variables."""
    return {variable.op.name: variable.read_value() for variable in tf.global_variables() + tf.local_variables()}


def mostly_stress(values, *default):
    """Returns values, or tuples of them, for `parametrize`; all except `default` are marked `stress`."""
    return [value if value in default else pytest.param(*value if isinstance(value, tuple) else [value],
                                                        marks=pytest.mark.stress) for value in values]


def own_towers(name, num_classes=10, **settings):
    """Returns the `OwnTowers` of a user's network, or of other code that the settings name."""
    settings = train_settings(**settings, **dict(network=name) if name else {})
    return Recipe(settings.recipe, num_classes, count=50_000).own


def rehearsed(name, batch_size=4, dtype=tf.float32, sizes=(24,), num_classes=10, **settings):
    """Returns the notes of the checks before training on a user's network; raises a UsageError if it is refused."""
    return [str(line) for line in own_towers(name, num_classes, **settings).check(batch_size, list(sizes), dtype)]


def add_tower(towers, images, labels=None, dtype=tf.float32):
    """Adds a tower of an `OwnTowers` to the current graph; returns its `Computed`."""
    labels = tf.zeros([images.shape[0]], tf.int32) if labels is None else labels
    with at_position(0, tf.zeros([], tf.int64)):
        return towers.train((images, labels), dtype)[0]


def logits_of(towers, images):
    """Adds a tower as `add_tower` does; returns the logits, from the collection of activations."""
    add_tower(towers, images)
    return tf.get_collection(tf.GraphKeys.ACTIVATIONS)[-1]


def checkpoints(directory):
    """Returns the prefixes of the checkpoints in a directory, in order of steps."""
    return list(glance(str(directory)).checkpoints)


def planned(settings, devices=None):
    """Returns (the Plan of a run, the lines about its decisions)."""
    devices, images, _ = prepared(settings, devices, makes_images=False)
    plan, lines = decisions.plan(settings, devices, images)
    return plan, [str(line) for line in lines]


def patient(seconds):
    """Returns a limit against hanging, in seconds, for work that takes at most `seconds` on an idle machine."""
    return seconds * float(os.environ.get('TESTS_PATIENCE', 10))


def random_moments():
    """Returns a random generator; its seed is printed and can be set in the environment."""
    seed = int(os.environ.get('TESTS_SEED', time.time_ns()))
    print(f'the random moments of this test: TESTS_SEED={seed}')
    return random.Random(seed)


def python(*arguments, environment=None, seconds=120):
    """Runs Python in the project's folder to its end; returns the CompletedProcess with text output."""
    return subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT,
                          env=environment, timeout=patient(seconds))


def slow_input(monkeypatch, seconds):
    """Delays each training batch; `seconds` is a number, or a function of the batch's first position."""
    make = Images.batch

    def slowly(images, augmentation, examples, positions):
        if positions is None:  # in an evaluation
            return make(images, augmentation, examples, positions)

        def wait(examples, first):
            time.sleep(seconds(first) if callable(seconds) else seconds)
            return examples
        slow = tf.ensure_shape(tf.numpy_function(wait, [examples, positions.first], tf.int64), examples.shape)
        return make(images, augmentation, slow, positions)
    monkeypatch.setattr(Images, 'batch', slowly)


def slow_towers(monkeypatch, seconds):
    """Lets tower k sleep for seconds(k) in each step of this process, between its loss and its gradients."""
    tower_loss = graph.tower_loss

    def slowed(scope, add_loss):
        total_loss, scalars = tower_loss(scope, add_loss)
        k = int(re.search(r'tower_(\d+)/', scope)[1])

        def sleep(x):
            time.sleep(seconds(k))
            return x

        @tf.custom_gradient
        def late(x):
            return tf.identity(x), lambda dy: tf.reshape(tf.numpy_function(sleep, [dy], tf.float32), [])
        return late(total_loss), scalars
    monkeypatch.setattr(graph, 'tower_loss', slowed)


def script_command(script, **flags):
    """Returns the command line of a script with flags; None omits a flag."""
    given = [f'--{name}={value}' for name, value in flags.items() if value is not None]
    return [sys.executable, str(ROOT / script), *given]


def run_script(script, **flags):
    """Runs a script to its end in its own process; returns the CompletedProcess with text output."""
    return run_forked(script_command(script, **flags))


def run_forked(command, environment=None):
    """Runs a script's command line to its end; returns the CompletedProcess with text output."""
    process = Forked(command, merged=False, environment=environment)
    output, errors = process.communicate(patient(120))
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def start_script(script, **flags):
    """Starts a script; returns its process, with standard output and error merged as text."""
    return Forked(script_command(script, **flags))


class Tasks:
    """The processes of a cluster; a context that kills them at its end."""

    def __init__(self, workers=2, ps=0, started=None, environment=None, **flags):
        command = script_command('multi_gpu_train.py', **dict(dict(tower_device='cpu'), **flags))
        self.environment = environment
        self._held = contextlib.ExitStack()
        self.commands = local_cluster.commands(
            command, self._held.enter_context(local_cluster.free_addresses(workers + ps)), workers)
        self.processes = {}
        for name in self.commands if started is None else started:
            self.start(name)

    def start(self, name):
        """Starts or restarts a task."""
        command = self.commands[name]
        if command[0] == sys.executable and self.environment is None:
            self.processes[name] = Forked(command)
        else:
            self.processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                                    text=True, env=self.environment)

    def __getitem__(self, name):
        return self.processes[name]

    def ends(self):
        """Waits for all tasks; returns {name: (status, output)}."""
        limit = time.monotonic() + patient(60)
        return {name: (process.communicate(timeout=max(limit - time.monotonic(), 1))[0], process.returncode)[::-1]
                for name, process in self.processes.items()}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.processes.values():
            process.kill()
            process.wait()
            process.stdout.close()
        self._held.close()


def read_until(process, text):
    """Reads lines of a process until one contains `text`; returns that line."""
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f'no {text!r} in:\n' + ''.join(seen))


def rest_of(reading):
    """Reads a terminal until its other end is closed; returns the text."""
    output = b''
    ready = select.poll()
    ready.register(reading)
    while ready.poll(1000 * patient(30)):
        try:
            output += os.read(reading, 65536)
        except OSError:
            break
    os.close(reading)
    return output.decode()


def state_of(folder):
    """Returns {name: (modification time, size)} of a folder's files."""
    return {entry.name: (entry.stat().st_mtime_ns, entry.stat().st_size) for entry in os.scandir(folder)}


def change_record(train_dir, **settings):
    """Changes settings in the newest record of a run, its config.json."""
    path = pathlib.Path(train_dir) / 'config.json'
    record = json.loads(path.read_text())
    path.write_text(json.dumps(dict(record, settings=dict(record['settings'], **settings),
                                    given=dict(record['given'], **settings))))


def variables(prefix):
    """Returns the arrays in a checkpoint, by name."""
    reader = tf.train.load_checkpoint(str(prefix))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def division(directory):
    """Returns the number of towers and the batch size of the newest start of a run that took a step."""
    towers = look(str(directory)).started[-1].settings.towers
    return towers.num_towers, towers.batch_size


def last_variables(directory):
    """Returns the arrays in the newest checkpoint of a directory, by name."""
    return variables(checkpoints(directory)[-1])


def write_records(folder, labels, images):
    """Writes uint8 images [n, 3, 32, 32] as the data set `shapes`: five equal training files and a test file."""
    rows = np.concatenate([np.asarray(labels, np.uint8)[:, None], images.reshape(len(images), -1)], 1)
    folder = pathlib.Path(folder) / 'shapes-bin'
    folder.mkdir(parents=True)
    for name, part in zip(datasets.TRAIN_FILES, np.array_split(rows, 5)):
        part.tofile(folder / name)
    rows.tofile(folder / 'test_batch.bin')


def assert_same_bits(one, other):
    """Asserts that two checkpoints' arrays are bit-identical."""
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    assert digest_of(one) == digest_of(other)


def train(config):
    """Trains; returns the arrays of the newest checkpoint."""
    trainer.train(config)
    return last_variables(config.run.train_dir)


def evaluated(checkpoint_dir, eval_dir, **flags):
    """Evaluates the newest checkpoint of a run once; returns the last record of eval_dir."""
    of_checkpoints.evaluate(eval_settings(checkpoint_dir=str(checkpoint_dir), eval_dir=str(eval_dir), run_once=True,
                                      tower_device='cpu', **flags))
    return metrics.read(str(eval_dir), metrics.EVAL)[-1]


def best_prefix(train_dir):
    """Returns the prefix of the best checkpoint of a run."""
    return prefix_of(str(train_dir), best_of(str(train_dir))['step'])


def as_given(config, **changes):
    """Returns settings as arguments of `cifar10.train`, without unset ones."""
    values = {**config.flat(), 'use_fp16': None, **changes}
    return {name: value for name, value in values.items() if value is not None}


def go_back(folder, name):
    """Copies a run, as `name` beside it, with its first checkpoint only; returns that checkpoint's variables."""
    copy = shutil.copytree(folder, pathlib.Path(folder).with_name(name))
    first, *later = checkpoints(copy)
    for prefix in later:
        remove(prefix)
    return variables(first)


def rewrite(prefix, to=None, without=(), version=tf.train.SaverDef.V2, **changes):
    """Rewrites a checkpoint with some arrays changed or omitted, using stock TensorFlow alone."""
    arrays = dict(variables(prefix), **changes)
    with tf.Graph().as_default(), tf.Session() as session:
        saved = {name: tf.Variable(array) for name, array in arrays.items() if name not in without}
        session.run(tf.global_variables_initializer())
        tf.train.Saver(saved, write_version=version).save(session, to or prefix, write_meta_graph=False)


def scalars(train_dir, tag, of='train'):
    """Returns (step, value) of a scalar in the newest event file of a run's folder."""
    directory = os.path.join(train_dir, of)
    newest = max((os.path.join(directory, name) for name in os.listdir(directory) if 'tfevents' in name),
                 key=os.path.getmtime)
    return [(event.step, value.simple_value) for event in tf.train.summary_iterator(newest)
            for value in event.summary.value if value.tag == tag]


def assert_close(found, expected):
    """Asserts that two runs agree up to rounding, which occasionally flips a maximum."""
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], atol=3e-3, err_msg=name)
        assert np.median(np.abs(found[name] - expected[name])) < 2e-4, name


@contextlib.contextmanager
def tensorboard(logdir):
    """Starts TensorBoard; yields a function that gets the JSON, or else the text, at a path."""
    process = subprocess.Popen(
        [os.path.join(os.path.dirname(sys.executable), 'tensorboard'), '--logdir', str(logdir), '--host', '127.0.0.1',
         '--port', '0'], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        url = re.search(r'http://\S+:\d+/', read_until(process, 'http://127.0.0.1')).group()
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

        def get(path):
            limit = time.monotonic() + patient(30)
            while True:  # until it has read the files
                with opener.open(url + path, timeout=patient(20)) as answer:
                    text = answer.read().decode()
                found = json.loads(text) if answer.headers.get_content_type() == 'application/json' else text
                if found or time.monotonic() > limit:
                    return found
                time.sleep(0.5)
        yield get
    finally:
        process.terminate()
        process.wait()
