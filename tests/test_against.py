"""Two runs compared by `python -m cifar10 replay --against`: where they part, in which tower and variable, and why."""
import json
import os
import pathlib
import shutil

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.parallel import parameter_server
from cifar10.programs.replay import compare, replay_settings
from cifar10.run import metrics
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import train_settings
from cifar10.tools.replay import against
from cifar10.training import trainer
from tests.helpers import tf

NETWORK = '''
import tensorflow.compat.v1 as tf
from tests.test_against import flipped

FLIPS = {flips}


@tf.custom_gradient
def faulty(value):
    return tf.identity(value), flipped


def tiny(images, num_classes, training):
    weights = tf.convert_to_tensor(tf.get_variable('weights', [3, num_classes], initializer=tf.zeros_initializer()))
    biases = tf.get_variable('biases', [num_classes], initializer=tf.zeros_initializer())
    if FLIPS and tf.get_default_graph().get_name_scope().startswith('tower_1'):
        weights = faulty(weights)
    return tf.reduce_mean(images, [1, 2]) @ weights + biases
'''


def flipped(gradient, bit=20):
    """Returns a gradient of the weights, in step 7 with a bit of one number flipped."""
    mask = np.zeros(gradient.shape, np.int32)
    mask[2, 3] = 1 << bit
    bits = tf.bitcast(gradient, tf.int32)
    in_step_7 = tf.equal(tf.train.get_global_step().read_value(), 6)
    return tf.bitcast(tf.where_v2(in_step_7, tf.bitwise.bitwise_xor(bits, mask), bits), tf.float32)


class Runs:
    """Runs of 12 steps of two towers, with checkpoints of steps 4, 8 and 12 and records of every second step.

    Attributes:
      folder: of their directories.
    """

    def __init__(self, folder, data_dir):
        self.folder = folder
        self._data_dir = data_dir
        for name in ('tiny', 'flipping'):
            (folder / name).mkdir()
            (folder / name / 'net.py').write_text(NETWORK.format(flips=name == 'flipping'))

    def train(self, name, network='tiny', **changes):
        """Trains; returns the TrainDir."""
        flags = dict(dataset='shapes', data_dir=self._data_dir, batch_size=4, num_towers=2, max_steps=12, save_steps=4,
                     log_frequency=2, summary_steps=0, tower_device='cpu', train_dir=str(self.folder / name),
                     network=f"{self.folder / network / 'net.py'}:tiny")
        with tf.Graph().as_default():
            trainer.train(train_settings(**dict(flags, **changes)))
        return TrainDir(flags['train_dir'])

    def continued(self, run, name, **changes):
        """Trains a copy of a run again from its checkpoint of step 8; returns the TrainDir."""
        shutil.copytree(run.path, self.folder / name)
        copy = TrainDir(str(self.folder / name))
        copy.remove_checkpoint(copy.checkpoints()[-1])
        return self.train(name, **changes)


@pytest.fixture(scope='session')
def runs(tmp_path_factory, data_dir):
    """The Runs."""
    return Runs(tmp_path_factory.mktemp('runs'), data_dir)


@pytest.fixture(scope='session')
def plain(runs):
    """A run in which nothing happens."""
    return runs.train('plain')


@pytest.fixture
def report(capsys):
    """A function that compares two runs; returns what is printed: first word of lines -> the texts behind it."""
    def lines(one, other):
        capsys.readouterr()
        compare(replay_settings(train_dir=one.path, against=other.path))
        found = {}
        for line in capsys.readouterr().out.splitlines():
            found.setdefault(line[:10].strip(), []).append(line[11:])
        return found
    return lines


@pytest.mark.stress
def test_a_difference_that_recurs_is_narrowed_down_to_the_step_the_tower_and_the_variable(runs, plain, report):
    lines = report(plain, runs.train('flipped', network='flipping'))
    assert lines['equal'] == ['step 4, by the SHA-256 of the checkpoints']
    assert lines['differ'][0].startswith('step 8, by the SHA-256 of the checkpoints; the recorded loss of step ')
    assert lines['from'] == [f'{plain.path}/model.ckpt-4, steps 5 to 8 of each run']
    for name in ('replay A', 'replay B'):
        assert lines[name] == ['verified as recorded: the loss of steps 6 and 8, the variables of step 8']
    assert lines['recurs'] == ['yes: step 7 is the first that differs']
    gradient, = lines['tower 1']
    assert gradient.startswith('gradient of weights: 1 of 30 numbers, [2, 3]: ')
    assert [line.split(':')[0] for line in lines['after']] == ['weights', 'weights/ExponentialMovingAverage']
    assert not {'tower 0', 'towers'} & lines.keys()
    assert 'network_sha256=' in lines['starts'][0]


@pytest.mark.stress
def test_a_difference_that_does_not_recur_is_not_put_down_to_what_the_runs_recorded(runs, plain, report, monkeypatch):
    average_gradients = parameter_server.average_gradients

    def mistaken(tower_grads):
        """Averages as on hardware that makes a mistake once, too small to be seen in the next losses."""
        return [(flipped(gradient, 6) if variable.op.name == 'weights' else gradient, variable)
                for gradient, variable in average_gradients(tower_grads)]
    with monkeypatch.context() as patch:
        patch.setattr(parameter_server, 'average_gradients', mistaken)
        faulty = runs.train('faulty')
    lines = report(plain, faulty)
    assert lines['equal'][0].startswith('step 4,') and lines['differ'][0].startswith('step 8,')
    assert lines['replay A'] == ['verified as recorded: the loss of steps 6 and 8, the variables of step 8']
    assert lines['replay B'][0].startswith('differs step 8: other variables came out than those of its checkpoint; ')
    assert lines['recurs'] == ['no: the replays of A and B come out the same up to step 8']
    assert lines['between'] == ['steps 4 and 8 something happened to B that its records do not explain']
    assert lines['starts'] == ['the same settings, images, devices, threads and versions']


@pytest.mark.stress
def test_runs_with_other_settings_part_where_these_begin(runs, plain, report, data_dir):
    lines = report(plain, runs.continued(plain, 'slower', learning_rate=0.05))
    assert lines['equal'] == ['steps 4 and 8, by the SHA-256 of the checkpoints']
    assert lines['recurs'] == ['yes: step 9 is the first that differs']
    assert lines['towers'] == ['batches, losses and gradients are equal in all of them, so only the update differs']
    assert lines['starts'] == ['learning_rate=0.1 and 0.1, then 0.05; step=0 and 0, then 8']
    lines = report(plain, runs.continued(plain, 'wider', batch_size=8, num_towers=1))
    assert lines['recurs'] == ['yes: step 9 is the first that differs']
    assert lines['towers'] == ['2 of 4 and 1 of 8, so each tower has other examples']
    assert lines['starts'] == ['num_towers=2 and 2, then 1; batch_size=4 and 4, then 8; step=0 and 0, then 8; '
                               'devices=/cpu:0 /cpu:0 and /cpu:0 /cpu:0, then /cpu:0']
    shutil.copytree(os.path.join(data_dir, 'shapes-bin'), runs.folder / 'data' / 'shapes-bin')
    for path in (runs.folder / 'data' / 'shapes-bin').glob('data_batch_*.bin'):
        rows = np.fromfile(path, np.uint8).reshape(-1, 3073)
        rows[:, 1:] += 1
        rows.tofile(path)
    lines = report(plain, runs.train('other', data_dir=str(runs.folder / 'data')))
    assert lines['tower 0'] == ['has another batch: its images, originals differ']
    assert 'images_sha256=' in lines['starts'][0]
    lines = report(plain, runs.train('seeded', seed=1))
    assert lines['equal'] == ['no step, by the SHA-256 of the checkpoints']
    assert lines['from'] == ['the initial values, steps 1 to 4 of each run']
    assert lines['recurs'] == ['yes: step 1 is the first that differs'] and lines['starts'] == ['seed=0 and 1']


@pytest.mark.stress
def test_the_average_of_local_steps_that_follows_an_update_is_a_part_of_it(runs, report):
    local = dict(variable_update='local', max_steps=40, save_steps=40)  # the first averages are close together in both
    lines = report(runs.train('in-twos', local_steps=2, **local), runs.train('in-fours', local_steps=4, **local))
    assert int(lines['recurs'][0].split()[2]) > 16
    assert lines['towers'] == ['batches, losses and gradients are equal in all of them, so only the update differs']
    assert lines['starts'] == ['local_steps=2 and 4']


@pytest.mark.stress
def test_everything_that_both_runs_recorded_is_compared(runs, plain, report):
    short = runs.train('short', max_steps=6)  # its only checkpoint is of step 6
    lines = report(plain, short)
    assert lines['A'] == [f'{plain.path}, with records up to step 12']
    assert lines['B'] == [f'{short.path}, with records up to step 6']
    assert lines['equal'] == ['step 4, by the SHA-256 of the checkpoints']
    assert lines['differ'] == ['no recorded checkpoint or loss']
    assert lines['starts'] == ['max_steps=12 and 6; last_step=12 and 6']
    # Losses that differ where the gradients, and so all checkpoints, are equal.
    network = runs.folder / 'constant' / 'net.py'
    network.parent.mkdir()
    network.write_text(NETWORK.format(flips=False).replace(
        '    return tf.reduce_mean', '    tf.losses.add_loss(tf.constant(.5))\n    return tf.reduce_mean'))
    lines = report(plain, runs.train('constant', network='constant'))
    assert lines['equal'] == ['steps 4, 8 and 12, by the SHA-256 of the checkpoints']
    assert lines['differ'][0].startswith('the recorded loss of step 2 is ')
    assert lines['from'] == ['the initial values, steps 1 to 2 of each run']
    assert lines['recurs'] == ['yes: step 1 is the first that differs'] and 'after' not in lines
    assert lines['tower 0'][0].startswith('loss ') and 'network_sha256=' in lines['starts'][0]
    # A new run from a copied checkpoint has no record of it.
    go_back = runs.folder / 'again'
    go_back.mkdir()
    for path in ('config.json', *(path.name for path in pathlib.Path(plain.path).glob('model.ckpt-8.*'))):
        shutil.copy(os.path.join(plain.path, path), go_back)
    lines = report(runs.train('again', learning_rate=0.05), plain)
    assert lines['equal'] == ['step 8, by the SHA-256 of the checkpoints']
    assert lines['recurs'] == ['yes: step 9 is the first that differs']
    assert 'learning_rate=0.05 and 0.1; ' in lines['starts'][0]


@pytest.mark.stress
def test_what_has_changed_since_a_run_is_not_said_to_be_unexplained(runs, report, data_dir):
    folder = runs.folder / 'images'
    shutil.copytree(os.path.join(data_dir, 'shapes-bin'), folder / 'shapes-bin')
    before = runs.train('before', data_dir=str(folder))
    for path in (folder / 'shapes-bin').glob('data_batch_*.bin'):
        rows = np.fromfile(path, np.uint8).reshape(-1, 3073)
        rows[:, 1:] += 1
        rows.tofile(path)
    lines = report(before, runs.train('after', data_dir=str(folder)))
    assert 'images_sha256=' in lines['replay A'][0] and lines['replay B'][0].startswith('verified')
    assert lines['between'][0].startswith('steps 0 and 2 A parted from its replay; since then images_sha256=')
    assert lines['starts'][0].startswith('images_sha256=') and 'not explain' not in str(lines)


@pytest.mark.stress
def test_what_cannot_be_compared_is_refused_with_the_remedy(runs, plain, tmp_path):
    def copied(name, changed):
        """Returns a copy of the run with the records that the function `changed` returns for its own."""
        copy = TrainDir(str(shutil.copytree(plain.path, tmp_path / name)))
        path = pathlib.Path(copy.path) / metrics.NAME
        records = [changed(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text(''.join(json.dumps(record) + '\n' for record in records if record))
        return copy
    shifted = copied('shifted', lambda record: dict(record, step=record['step'] + 1))
    for prefix in shifted.checkpoints():
        shifted.remove_checkpoint(prefix)
    tutorial = TrainDir(str(tmp_path / 'tutorial'))
    os.mkdir(tutorial.path)
    for other, message in ((shifted, 'has records of 6 steps from 2 to 12.* cannot be compared; train both to a step'),
                           (tutorial, 'holds no run of this program, .*; name the train_dir of a run')):
        with pytest.raises(UsageError, match=message):
            list(against.compare(plain, other))
    changes = {metrics.START: dict(step=2), metrics.CHECKPOINT: dict(sha256='0')}
    resumed = copied('resumed', lambda record: dict(record, **changes.get(record['kind'], {})))
    early = copied('early', lambda record: None if record['kind'] == metrics.START else record)
    assert [line for line in against.compare(plain, resumed) if line.startswith('replay ')] == [
        f'replay     not possible: the records of the run in {resumed.path} begin after step 2, and no checkpoint at '
        'which both runs are equal is kept; train both again with --max_to_keep=0']
    *_, differ, starts = against.compare(plain, early)
    assert differ == 'differ     no recorded checkpoint or loss'
    assert starts == 'starts     not compared, because a run has no record of one'
    with pytest.raises(UsageError, match=r'give exactly one of --step=N .* and --against=DIR \(a run to compare'):
        replay_settings(against=plain.path, step=7)
    with pytest.raises(UsageError, match='--from contradicts --against; leave one of them out'):
        replay_settings(against=plain.path, from_='model.ckpt-2')
