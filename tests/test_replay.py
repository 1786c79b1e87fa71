"""Replay: steps of a run that are taken again come out as recorded, and what went wrong in one is found."""
import json
import pathlib
import re
import shlex
import shutil
import subprocess

import numpy as np
import pytest

import cifar10
from cifar10.base.errors import RunError, UsageError
from cifar10.base.graphs import EXAMPLES_SEEN
from cifar10.programs import program
from cifar10.programs import replay as replay
from cifar10.run import metrics
from cifar10.run.folder import look, step_of
from cifar10.run.train_dir import TrainDir
from cifar10.settings.training import train_settings
from cifar10.tools.replay import report
from cifar10.tools.replay.against import compare_runs
from cifar10.tools.replay.probe import Look, Probe
from cifar10.tools.replay.rerun import Rerun
from cifar10.tools.replay.verify import Verification
from cifar10.training import trainer
from tests import helpers
from tests.helpers import ROOT, patient, state_of, tf, write_records

NETWORK = '''
import math
import tensorflow.compat.v1 as tf
def tiny(images, num_classes, training):
    flat = tf.reshape(tf.cast(images, tf.float32), [-1, 24 * 24 * 3])
    weights = tf.get_variable('weights', [24 * 24 * 3, num_classes], initializer=tf.constant_initializer(0.001))
    biases = tf.get_variable('biases', [num_classes], initializer=tf.zeros_initializer())
    {}
    return flat @ weights + biases
'''
STARTS = [dict(max_steps=4, variable_update='replicated'),
          dict(max_steps=8, variable_update='parameter_server', batch_size=5, learning_rate=0.02)]


def write_network(folder, line='pass'):
    """Writes a network of one layer with a line of its own; returns its name."""
    folder.mkdir(exist_ok=True)
    (folder / 'mine.py').write_text(NETWORK.format(line))
    return f"{folder / 'mine.py'}:tiny"


def train(train_dir, data_dir, *starts, **common):
    """Trains a run that is started several times; returns its train_dir as a string."""
    for start in starts:
        with tf.Graph().as_default():
            trainer.train(train_settings(**dict(dict(
                dataset='shapes', data_dir=data_dir, train_dir=str(train_dir), batch_size=4, tower_device='cpu',
                log_frequency=1, save_steps=2, max_to_keep=0, summary_steps=0), **common, **start)))
    return str(train_dir)


@pytest.fixture(scope='session')
def run(tmp_path_factory, data_dir):
    """The train_dir of a run of 8 steps on two devices; update mode, batch and rate change after step 4."""
    folder = tmp_path_factory.mktemp('replay')
    return train(folder / 'train', data_dir, *STARTS, network=write_network(folder), num_gpus=2, optimizer='momentum')


@pytest.fixture
def call(monkeypatch, capsys):
    """A function that runs the program in this process; returns (status, output, standard error)."""
    def called(*arguments):
        monkeypatch.setattr('sys.argv', ['replay', *arguments])
        monkeypatch.setattr('sys.stdout.reconfigure', lambda **options: None, raising=False)
        capsys.readouterr()
        status = program.run(replay.main)
        return status, *capsys.readouterr()
    return called


def assert_comes_out(train_dir, last, first, start=None):
    """Asserts that steps taken again have the recorded figures, and the variables of every checkpoint, to the bit."""
    folder = look(train_dir)
    records = {record['step']: record for record in metrics.read(train_dir, metrics.TRAIN)}
    saved = {step_of(prefix): prefix for prefix in folder.checkpoints}
    rerun = Rerun(folder, last, first, start)
    taken = list(rerun.steps())
    assert [each.step for each in taken] == list(range(rerun.step + 1, last + 1))
    for each in taken:
        for name, figure in each.figures.items():
            assert metrics.rounded(figure) == records[each.step][name]
        if each.step >= first and each.step in saved:
            helpers.assert_same_bits(each.after, helpers.variables(saved[each.step]))
    return rerun


@pytest.mark.stress
def test_the_steps_of_two_starts_come_out_to_the_bit_also_on_another_number_of_devices(run):
    rerun = assert_comes_out(run, 8, 1)
    assert rerun.start is None and [(each.first, each.last) for each in rerun.segments] == [(1, 4), (5, 8)]
    assert [each.plan.settings.towers.batch_size for each in rerun.segments] == [4, 5]
    assert [(len(each.plan.devices.groups), each.start.groups) for each in rerun.segments] == [(1, 2), (1, 2)]


@pytest.mark.stress
def test_every_synchronous_mode_and_precision_comes_out_to_the_bit(tmp_path, data_dir):
    assert_comes_out(train(
        tmp_path / 'train', data_dir, dict(max_steps=2, variable_update='replicated', num_towers=4),
        dict(max_steps=4, variable_update='mirrored', precision='bf16', num_towers=2),
        dict(max_steps=6, precision='fp16', num_towers=3), dict(max_steps=8), num_gpus=2,
        optimizer='momentum'), 8, 1)


@pytest.mark.stress
def test_runs_in_epochs_with_image_sizes_that_change_come_out_to_the_bit(tmp_path, data_dir):
    train_dir = train(tmp_path / 'train', data_dir, dict(num_gpus=2), preset='fast', widths='16,16,16', epochs=0.008,
                      precision='fp32', summary_steps=3)
    for first in (1, 5, 8):
        assert_comes_out(train_dir, 10, first)


def test_a_step_is_described_by_its_towers_variables_and_examples_and_nothing_changes(run, call):
    with TrainDir(run).locked():  # the run may be training
        before = state_of(run)
        status, output, errors = call(f'--train_dir={run}', '--step=7', f'--from={run}/model.ckpt-4')
        assert (status, errors) == (0, '') and state_of(run) == before
    lines = output.splitlines()
    rows = {word: [line.split()[1:] for line in lines if line.startswith(word)]
            for word in ('step', 'tower', 'variable', 'example')}
    records = {record['step']: record['loss'] for record in metrics.read(run, metrics.TRAIN)}
    assert [(int(row[0]), float(row[1])) for row in rows['step']] == [(step, records[step]) for step in (5, 6, 7)]
    assert np.mean([float(row[1]) for row in rows['tower']]) == pytest.approx(records[7], rel=1e-6)
    assert [row[0] for row in rows['variable']] == ['weights', 'biases']
    assert len(rows['example']) == 5
    losses = [float(row[0]) for row in rows['example']]
    assert losses == sorted(losses, reverse=True)
    assert 'finite     all losses, gradients and variables' in lines
    assert f'from       {run}/model.ckpt-4, 3 steps' in lines
    assert 'verified   as recorded: the loss of steps 5, 6 and 7, the variables of step 6' in lines


@pytest.mark.stress
def test_a_table_shows_the_steps_between_two(run, call):
    _, output, _ = call(f'--train_dir={run}', '--steps=4:5')
    assert [line.split()[1] for line in output.splitlines() if line.startswith('step')] == ['4', '5']
    assert f'run        {run}, steps 4 to 5\n' in output
    assert f'from       {run}/model.ckpt-2, 3 steps' in output and '\nvariable' not in output


def test_the_probes_agree_with_what_numpy_computes_from_the_step(run, data_dir):
    rerun = Rerun(look(run), 7, 7)
    taken = list(rerun.steps())[-1]
    probe = Probe(rerun.segments[-1].plan)
    found = probe.look(taken)
    assert list(found.norms) == ['weights', 'biases']
    for name, norms in found.norms.items():
        change = taken.after[name] - taken.before[name]
        momentum = [values[f'{name}/Momentum'] for values in (taken.before, taken.after)]
        gradient = momentum[1] - 0.9 * momentum[0]
        np.testing.assert_allclose(
            norms, [np.linalg.norm(each) for each in (taken.before[name], gradient, change)], rtol=1e-5)
        np.testing.assert_allclose(change, -taken.figures['learning_rate'] * momentum[1], atol=2e-7)
    np.testing.assert_allclose([tower['loss'] for tower in found.towers], taken.losses, rtol=1e-6)
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in rerun.data.files]).reshape(-1, 3073)
    for k, tower in enumerate(found.towers):
        batch = probe.batch(taken, k)
        np.testing.assert_array_equal(rows[tower['examples'], 0], tower['labels'])
        np.testing.assert_array_equal(rows[tower['examples'], 1:].reshape(-1, 3, 32, 32), batch.originals)
        logits = batch.images.reshape(5, -1) @ taken.before['weights'] + taken.before['biases']
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(5), tower['labels']]
        np.testing.assert_allclose(tower['losses'], losses, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(tower['predictions'], logits.argmax(1))
        assert tower['loss'] == pytest.approx(losses.mean(), rel=1e-4)
    assert taken.before[EXAMPLES_SEEN] == 4 * 8 + 2 * 10
    assert len({tuple(tower['examples']) for tower in found.towers}) == 2


def verified(train_dir, step, **options):
    """Returns the line that says whether a step comes out as recorded."""
    rerun = Rerun(look(str(train_dir)), step, **options)
    verification = Verification(rerun)
    for taken in rerun.steps():
        verification.add(taken)
    return verification.line()


def test_a_loss_that_does_not_come_out_is_reported_with_what_has_changed(run, tmp_path):
    altered = tmp_path / 'train'
    shutil.copytree(run, altered)
    lines = [json.loads(line) for line in open(altered / metrics.NAME)]
    for record in lines:
        if record['kind'] == 'start':
            record['versions'].update(cifar10='0.9', NumPy='1.0')
        elif record['kind'] == metrics.TRAIN and record['step'] == 6:
            recorded, record['loss'] = record['loss'], metrics.rounded(record['loss'] * 1.0001)
            false = record['loss']
    (altered / metrics.NAME).write_text(''.join(json.dumps(record) + '\n' for record in lines))
    name = write_network(tmp_path / 'other', '# changed')
    assert (f'differs    step 6: the run recorded loss {false}, the replay gives {recorded}; cifar10=0.9 (now '
            f'{cifar10.__version__}); NumPy=1.0 (now '
            in (line := verified(altered, 6, network=name)) and '; network_sha256=mine.py:' in line)


def diverged(tmp_path, data_dir, line='pass', **settings):
    """Trains a run that diverges; returns what follows 'python -m cifar10 replay' at the end of its error line."""
    with pytest.raises(RunError) as failure:
        train(tmp_path / 'train', data_dir, dict(max_steps=30), network=write_network(tmp_path, line), save_steps=1000,
              summary_steps=0, **settings)
    return command_of(failure.value)


def command_of(error):
    """Returns the arguments of the command at the end of an error line."""
    *_, command = str(error).partition('; to see why: ')
    python, option, package, program, *arguments = shlex.split(command)
    assert (python, option, package, program) == ('python', '-m', 'cifar10', 'replay')
    return arguments


def cause(output):
    """Returns the line that names the cause, the first of those on what is not finite."""
    lines = [line for line in output.splitlines() if line.startswith(('cause', 'not finite', 'finite'))]
    assert lines[0].startswith('cause '), output
    return lines[0]


@pytest.mark.stress
def test_the_command_in_the_error_finds_the_image_that_makes_a_network_divide_by_zero(tmp_path, call):
    images = np.random.default_rng(0).integers(0, 256, [60, 3, 32, 32], np.uint8)
    images[41] = 0  # its standard deviation is 0
    write_records(tmp_path / 'data', np.arange(60) % 10, images)
    arguments = diverged(tmp_path, str(tmp_path / 'data'),
                         'flat = flat / tf.math.reduce_std(flat, 1, keepdims=True)', num_gpus=2)
    status, output, _ = call(*arguments)
    found = re.search(r'tower (\d): .* is the first operation on the way to the loss whose result is not finite, '
                      r'for image (\d) of its batch \(index 41, square\)', cause(output))
    k, place = found.groups()
    example = next(line.split() for line in output.splitlines() if line.startswith('example'))
    assert example[1:5] == ['nan', k, place, '41'] and status == 0
    assert re.search(r'^verified .* step', output, re.M)


@pytest.mark.stress
def test_the_command_in_the_error_finds_the_tower_and_the_operation(tmp_path, data_dir, call):
    arguments = diverged(
        tmp_path, data_dir,
        # Not in the towers of the rehearsal, which would refuse it.
        'if training and tf.get_default_graph().get_name_scope().startswith("tower_1"): flat = '
        'tf.log(tf.where(tf.fill(tf.shape(flat), tf.equal(tf.train.get_global_step(), 4)), -tf.ones_like(flat), '
        'tf.exp(flat)), name="suspicious")',
        num_gpus=2)
    assert '--step=5' in arguments
    _, output, _ = call(*arguments)
    assert re.fullmatch(r'cause      tower 1: tower_1/suspicious \(Log\) is the first operation on the way to the '
                        r'loss whose result is not finite; its inputs range from -1 to -1', cause(output))
    assert re.search(r'^not finite tower 1: loss nan, from all 4 images$', output, re.M)
    assert 'tower 0: ' not in output


FROM_STEP_3 = 'bad = tf.cast(tf.greater_equal(tf.train.get_or_create_global_step(), 2), tf.float32); '
LOG = 'flat = flat + tf.log(1. - bad, name="culprit")'
UNTRAINED = 'tf.get_variable("{}", [1], initializer=tf.constant_initializer({}), trainable=False)'


@pytest.mark.stress
@pytest.mark.parametrize('line, culprit', [
    ('flat = tf.cond(bad > 0, lambda: flat / tf.zeros_like(flat), lambda: flat * 2., name="culprit")', 'culprit'),
    ('flat = tf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, tf.nn.relu(h) / (1. - bad)), [0, flat], '
     'name="culprit")[1]', 'culprit'),
    # Infinities in every step, which do not reach the loss; variables that are large or infinite from the start, a
    # scalar, and one without values.
    ('flat = flat + tf.minimum(tf.exp(1e3 * tf.abs(flat)), 1.); '
     'flat = flat + tf.where(flat > 0, tf.stop_gradient(tf.log(tf.maximum(flat, 0))), flat); '
     f'flat = tf.minimum(flat + 1e-9 * {UNTRAINED.format("table", 1e9)}, {UNTRAINED.format("smallest", "math.inf")}); '
     'flat = flat * tf.get_variable("gain", [], initializer=tf.ones_initializer()); '
     'tf.get_variable("none", [0], trainable=False); ' + LOG, 'culprit (Log)')])
def test_the_cause_is_the_operation_from_which_the_loss_is_not_finite(tmp_path, data_dir, call, line, culprit):
    arguments = diverged(tmp_path, data_dir, FROM_STEP_3 + line, num_gpus=1)
    assert '--step=3' in arguments
    status, output, errors = call(*arguments)
    assert (status, errors) == (0, '') and f'tower 0: tower_0/{culprit}' in cause(output)
    status, output, errors = call(*arguments[:-1], '--step=2')  # all is well there
    assert (status, errors) == (0, '') and output.splitlines()[-1].startswith(('finite  ', 'not finite before', 'jump'))
    assert '\ncause ' not in output


@pytest.mark.stress
def test_a_variable_that_is_no_longer_finite_is_traced_to_its_update(tmp_path, data_dir, call):
    with pytest.raises(RunError, match='step 1: a variable is not finite') as failure:
        train(tmp_path / 'train', data_dir, dict(max_steps=1), learning_rate=1e38,
              network=write_network(tmp_path, 'flat = 1000 * flat'))
    _, output, _ = call(*command_of(failure.value))
    assert re.search(r'the update: losses and gradients are finite; .* learning rate is 1e\+38', cause(output))
    assert re.search(r'^not finite after the step: weights', output, re.M)


def look_into(step, **norms):
    """Returns a look into a step in which nothing is wrong; `norms` are of (value, gradient, change)."""
    return Look(step, np.float32([1]), dict(loss=1.0, learning_rate=0.1), [], 1.0, norms, {}, {}, {}, None)


def test_a_cause_before_the_steps_that_are_shown_is_not_put_into_them():
    def lines(*looks):
        return '\n'.join(report.not_finite_lines(looks, []))
    jump = 'step 20 changed the variables by 3 times their own norm'
    assert f'jump       {jump}' in lines(look_into(19, w=(1, 1, 0.1)), look_into(20, w=(1, 1, 3)))
    assert '--steps=' not in lines(look_into(19, w=(1, 1, 0.1)), look_into(20, w=(1, 1, 3)))
    assert '; --steps=10:20 shows the steps before it' in lines(look_into(20, w=(1, 1, 3)))
    diverged = look_into(21, w=(1e9, 1, np.nan))._replace(bad_made=dict(w=(1, 1)))
    assert f'cause      {jump}' in lines(look_into(20, w=(1, 1, 3)), diverged)
    assert ('large      w had norm 1e+08 before step 20 already; --steps=10:20 shows the steps before it'
            in lines(look_into(20, w=(1e8, 1, 1e7)), diverged))
    moved = look_into(20, w=(1, 1, 0.1), moving_mean=(1, None, 100))  # follows the data, not the gradient
    assert 'jump' not in lines(moved) and report.table_of_steps([moved])[-1].endswith('0.1   w')
    assert ('cause      what was passed to add_moving_statistic for moving_mean: '
            in lines(moved._replace(bad_made=dict(moving_mean=(1, 1)))))
    assert 'cause      the update: ' in lines(moved._replace(bad_made=dict(moving_mean=(1, 1), w=(1, 1))))
    one_of_two = look_into(20, w=(1, 1, 0.1), v=(1, 1, 0.1))._replace(bad_made=dict(w=(1, 1)))
    assert 'cause      the update: ' in lines(one_of_two)


@pytest.mark.parametrize('arguments, part', [
    (['--step=9'], 'the run in {run} got to step 8 at most; give that step or an earlier one'),
    (['--step=4', '--from={run}/model.ckpt-4'], 'is from step 4, but step 4 can be replayed only from step 0 to 3'),
    (['--step=4', '--from={run}/model.ckpt-3'], 'there is no such checkpoint; give the prefix of one'),
    (['--step=4', '--network=classic'], '--network=classic, but the run in {run} has network='),
    (['--step=4', '--against={run}'], 'give exactly one of --step=N (a step to look into), --steps=FROM:TO'),
    (['--against={run}', '--from={run}/model.ckpt-4'], '--from contradicts --against, which replays no steps; leave'),
    (['--against={run}', '--tower_device=cpu'], '--tower_device contradicts --against, which replays no steps; leave'),
    (['--step=4', '--steps=1:4'], 'give exactly one of --step=N (a step to look into), --steps=FROM:TO'),
    (['--steps=4:1'], '--steps=4:1 ends before it begins'),
    (['--step=4', '--from='], '--from is empty')])
def test_bad_input_is_one_line_with_the_remedy(run, call, arguments, part):
    status, _, errors = call(f'--train_dir={run}', *[argument.format(run=run) for argument in arguments])
    assert status == 2 and len(errors.splitlines()) == 1 and errors.startswith('replay: error: ')
    assert part.format(run=run) in errors


@pytest.mark.stress
def test_steps_that_the_run_did_not_take_are_not_shown_as_its_own(run, call, tmp_path, data_dir):
    copied = tmp_path / 'copied'
    shutil.copytree(run, copied)
    (copied / metrics.NAME).write_text(''.join(
        line for line in open(copied / metrics.NAME) if '"kind": "start"' not in line))
    status, _, errors = call(f'--train_dir={copied}', '--step=7')
    assert status == 2 and 'has no record of a start, so the steps cannot be repeated' in errors
    # A run that ends in step 3, of which only a start is recorded.
    arguments = diverged(tmp_path, data_dir, FROM_STEP_3 + LOG, log_frequency=10, num_gpus=1)
    _, output, _ = call(*arguments)
    assert cause(output).endswith('range from 0 to 0')
    status, _, errors = call(*arguments[:-1], '--step=5')
    assert status == 2 and 'the run never took step 5: the loss of step 3 is not finite, which ends a run' in errors
    # A run that was killed after step 4.
    killed = train(tmp_path / 'killed', data_dir, dict(max_steps=4), network=write_network(tmp_path))
    lines = (pathlib.Path(killed) / metrics.NAME).read_text().replace('"last_step": 4', '"last_step": 30')
    (pathlib.Path(killed) / metrics.NAME).write_text(lines)
    status, output, _ = call(f'--train_dir={killed}', '--step=5')
    assert status == 0 and '\nunverified there is no record of step 5 in metrics.jsonl' in output
    status, _, errors = call(f'--train_dir={killed}', '--step=6')
    assert status == 2 and 'got to step 5 at most' in errors


def test_other_directories_and_checkpoints_are_refused(run, call, tmp_path):
    _, _, errors = call(f'--train_dir={tmp_path}', '--step=1')
    assert f'--train_dir={tmp_path} holds no run of this program, so there is nothing to replay' in errors
    # A run that went on from a tutorial's checkpoint: what came before is not known.
    copied = tmp_path / 'train'
    shutil.copytree(run, copied)
    records = [line for line in open(copied / metrics.NAME) if '"kind": "start", "step": 0' not in line]
    (copied / metrics.NAME).write_text(''.join(records))
    _, _, errors = call(f'--train_dir={copied}', '--step=4')
    assert f'the records of the run in {copied} begin after step 4; give a later step\n' in errors
    helpers.rewrite(f'{run}/model.ckpt-2', str(tmp_path / 'tutorial.ckpt-2'), without=(EXAMPLES_SEEN,))
    _, _, errors = call(f'--train_dir={copied}', '--step=6', f"--from={tmp_path / 'tutorial.ckpt-2'}")
    assert 'is from step 2, but step 6 can be replayed only from step 4 to 5; give' in errors
    (tmp_path / 'cut.ckpt-4.index').write_bytes(open(f'{run}/model.ckpt-4.index', 'rb').read()[:50])
    _, _, errors = call(f'--train_dir={copied}', '--step=5', f"--from={tmp_path / 'cut.ckpt-4'}")
    assert 'cannot be read' in errors and errors.endswith('; give another checkpoint\n')
    helpers.rewrite(f'{run}/model.ckpt-4', str(tmp_path / 'other.ckpt-4'), weights=np.zeros([5, 10], np.float32))
    _, _, errors = call(f'--train_dir={copied}', '--step=5', f"--from={tmp_path / 'other.ckpt-4'}")
    assert 'other.ckpt-4 has weights of shape [5, 10] instead of' in errors


def test_a_checkpoint_that_is_not_the_one_of_the_run_is_reported(run, tmp_path):
    prefix = str(tmp_path / 'model.ckpt-4')
    helpers.rewrite(f'{run}/model.ckpt-4', prefix, biases=np.ones(10, np.float32))
    assert (Verification(Rerun(look(run), 5, start=prefix)).line() ==
            f'differs    step 4: {prefix} does not have the variables that the run recorded; it belongs to another '
            'run, or its file has changed')
    assert Verification(Rerun(look(run), 5)).line().startswith(
        'unverified there is no record of step 5 in metrics.jsonl')


def test_records_of_starts_in_another_form_are_refused(run, call, tmp_path):
    copied = tmp_path / 'train'
    shutil.copytree(run, copied)
    with open(copied / metrics.NAME, 'a') as stream:
        stream.write('{"kind": "start", "step": 8}\n')
    status, _, errors = call(f'--train_dir={copied}', '--step=2')
    assert status == 2 and 'metrics.jsonl lacks settings, last_step, ' in errors


def test_steps_of_an_asynchronous_start_are_refused(run, call, tmp_path):
    copied = tmp_path / 'train'
    shutil.copytree(run, copied)
    text = (copied / metrics.NAME).read_text()
    (copied / metrics.NAME).write_text(text.replace('"replicated"', '"async"', 1))
    _, _, errors = call(f'--train_dir={copied}', '--step=2')
    assert 'took the steps after 0 with --variable_update=async, whose updates have no fixed order' in errors
    assert Rerun(look(str(copied)), 5).step == 4


@pytest.mark.stress
def test_the_errors_of_an_asynchronous_run_name_no_command(tmp_path, data_dir):
    with pytest.raises(RunError) as failure:
        train(tmp_path / 'train', data_dir, dict(max_steps=30), network=write_network(tmp_path, 'flat = flat * 1e38'),
              variable_update='async', learning_rate=1e30)
    assert 'replay' not in str(failure.value)


@pytest.mark.stress
@pytest.mark.parametrize('mode', ['parameter_server', 'replicated'])
def test_a_run_of_two_machines_comes_out_on_one(tmp_path, data_dir, mode):
    with helpers.Tasks(dataset='shapes', data_dir=data_dir, train_dir=tmp_path / 'train', num_gpus=2, batch_size=4,
                       max_steps=6, save_steps=3, log_frequency=1, variable_update=mode) as tasks:
        assert [status for status, _ in tasks.ends().values()] == [0, 0]
    assert_comes_out(str(tmp_path / 'train'), 6, 4)


@pytest.mark.stress
def test_the_commands_of_both_programs_work_as_they_are_typed(tmp_path, data_dir):
    result = helpers.run_script('multi_gpu_train.py', dataset='shapes', data_dir=data_dir, learning_rate=1e30,
                                train_dir=tmp_path / "a user's run", batch_size=4, max_steps=5, tower_device='cpu')
    assert result.returncode == 1
    replayed = subprocess.run([helpers.sys.executable, '-m', 'cifar10', 'replay', *command_of(result.stderr)],
                              text=True, capture_output=True, cwd=ROOT, timeout=patient(120))
    assert replayed.returncode == 0 and 'step 1 changed the variables' in cause(replayed.stdout)


# ---------------------------------------------------------------------------------------------- the records of two runs

def recorded_as(run, folder, change):
    """Returns the path of a copy of a run, with the records that the function `change` makes of its own."""
    copy = pathlib.Path(shutil.copytree(run, folder))
    records = [change(json.loads(line)) for line in (copy / metrics.NAME).read_text().splitlines()]
    (copy / metrics.NAME).write_text(''.join(json.dumps(record) + '\n' for record in records if record))
    return str(copy)


def compared(one, other):
    """Returns what a comparison of two runs says: first word of a line -> the text behind it."""
    return {line[:10].strip(): line[11:] for line in compare_runs(look(one), look(other))}


def test_two_runs_part_where_their_records_differ_first(run, call, tmp_path):
    def other(record):
        if record['kind'] == metrics.CHECKPOINT and record['step'] >= 6:
            return dict(record, sha256='0')
        if record['kind'] == metrics.TRAIN and record['step'] >= 7:
            return dict(record, loss=0.5)
        if record['kind'] == metrics.START and record['step']:
            return dict(record, settings=dict(record['settings'], learning_rate=0.5))
        return record
    parted = recorded_as(run, tmp_path / 'parted', other)
    loss = next(record['loss'] for record in metrics.read(run, metrics.TRAIN) if record['step'] == 7)
    status, output, errors = call(f'--train_dir={run}', f'--against={parted}')
    assert (status, errors) == (0, '') and output.splitlines() == [
        f'A          {run}', f'B          {parted}',
        'equal      steps 2 and 4, by the SHA-256 of the checkpoints',
        f'differ     step 6, by the SHA-256 of the checkpoints; the recorded loss of step 7 is {loss} and 0.5',
        'starts     learning_rate=0.01, then 0.02 and 0.01, then 0.5']
    # What a run did after the step by which they have parted explains nothing.
    earlier = recorded_as(parted, tmp_path / 'earlier', lambda record: dict(record, loss=0.5) if (
        record['kind'] == metrics.TRAIN and record['step'] == 3) else record)
    found = compared(run, earlier)
    assert '; the recorded loss of step 3 is ' in found['differ']
    assert found['starts'] == 'the same settings, images, devices, threads and versions'


def test_runs_with_equal_records_do_not_differ(run, tmp_path):
    diverged = [recorded_as(run, tmp_path / name, lambda record: dict(record, loss=None) if (
        record['kind'] == metrics.TRAIN and record['step'] == 8) else record) for name in ('one', 'other')]
    for pair in ([run, run], diverged):
        found = compared(*pair)
        assert found['equal'] == 'steps 2, 4, 6 and 8, by the SHA-256 of the checkpoints'
        assert found['differ'] == 'no recorded checkpoint or loss'
        assert found['starts'] == 'the same settings, images, devices, threads and versions'


def test_what_cannot_be_compared_is_refused_with_the_remedy(run, tmp_path):
    shifted = recorded_as(run, tmp_path / 'shifted', lambda record: dict(record, step=record['step'] + 100))
    new = recorded_as(run, tmp_path / 'new', lambda record: record if record['kind'] == metrics.START else None)
    (tmp_path / 'tutorial').mkdir()
    for other, message in (
            (shifted, 'have no records of the same step, so they cannot be compared; train both to a step that both'),
            (new, 'have no records of the same step'),
            (str(tmp_path / 'tutorial'), 'holds no run of this program, .*; name the train_dir of a run')):
        with pytest.raises(UsageError, match=message):
            compared(run, other)
    unknown = recorded_as(run, tmp_path / 'unknown', lambda record: None if record['kind'] == metrics.START else record)
    assert compared(run, unknown)['starts'] == 'not compared, because a run has no record of one'
