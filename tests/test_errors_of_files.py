"""A failure of each system call on a run's files: one line names the file and the cause, and a restart recovers."""
import errno
import json
import os

import pytest

from cifar10.base.errors import UsageError
from cifar10.run import checkpoints as of_run
from cifar10.run import metrics
from cifar10.run.folder import best_of, look, step_of
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.crashes import names, read_tree, run_traced, write_tree
from tests.helpers import (
    assert_same_bits,
    best_prefix,
    checkpoints,
    last_variables,
    mostly_stress,
    script_command,
    tf,
    variables,
)
from tests.test_crashes import evaluator, flags, keeping, pictures, records_of, run  # noqa: F401 (fixtures)
from tests.tracer import form

# Possible errors of each call; 0 means a write of half the bytes.
ERRORS = {
    'write': (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR, 0),
    'open': (errno.EMFILE, errno.EACCES, errno.EROFS, errno.ESTALE, errno.EINTR),
    'rename': (errno.EIO, errno.EROFS, errno.ENOSPC), 'remove': (errno.EIO, errno.EACCES, errno.EROFS),
    'sync': (errno.EIO, errno.ENOSPC, errno.EDQUOT), 'make': (errno.ENOSPC, errno.EACCES, errno.EROFS),
    'read': (errno.EIO, errno.ESTALE, errno.EINTR)}
KINDS = dict(write='write', pwrite64='write', writev='write', open='open', openat='open', creat='open', rename='rename',
             renameat='rename', renameat2='rename', unlink='remove', unlinkat='remove', rmdir='remove', fsync='sync',
             fdatasync='sync', mkdir='make', mkdirat='make', ftruncate='write', truncate='write', link='make',
             read='read', pread64='read', fallocate='write', sendfile='write',
             copy_file_range='write')


def places(log):
    """Returns the number of the first call of each name on files of each name, with its possible errors."""
    found = {}
    for number, line in enumerate(open(log), 1):
        name, *paths = json.loads(line)
        errors = [error for error in ERRORS[KINDS[name]] if error or name == 'write']
        found.setdefault((name, *form(paths)), (number, errors))
    return list(found.values())


def faults(log):
    """Returns (number of a call, error, whether all later calls fail too) for each place and error."""
    return [(number, error, always) for number, errors in places(log) for error in errors
            for always in (False, *[True] * (error != errno.EINTR))]  # an interrupted call is retried


def assert_told(result, error, folder):
    """Asserts that a process succeeded, or failed with one line that names a file of the folder and the cause."""
    assert 'Traceback' not in result.stderr, result.stderr
    if result.returncode == 0:
        return
    lines = [line for line in result.stderr.splitlines() if ' error: ' in line]
    # TensorFlow reports a stale file handle or an interruption as a lost device.
    assert (result.returncode in (1, 2) or error in (errno.ESTALE, errno.EINTR)) and len(lines) == 1, result
    causes = [os.strerror(error)] if error else ['']
    if error == errno.EACCES:
        causes.append('belongs to another user and cannot be opened')
    assert str(folder) in lines[0] and any(cause in lines[0] for cause in causes), lines


def chosen(found, count):
    """Returns about `count` of the faults, evenly spaced."""
    return found[::max(len(found) // count, 1)]


def assert_survives(command, begin, compare, count, tmp_path, ends=(0,)):
    """Asserts that a program reports each fault in one line, and completes its work after a restart.

    Args:
      command: function (folder) -> the command line of the program.
      begin: {path: bytes}, the initial content of the folder.
      compare: function (folder after a fault, folder of an undisturbed run) that asserts that the first folder is
        correct.
      count: approximate number of faults to try.
      ends: the allowed exit statuses of a restart.
    """
    def started(name, *options):
        folder = tmp_path / name
        if begin:
            write_tree(folder, begin)
        return folder, run_traced(command(folder), folder, *options, log=tmp_path / f'{name}.log')
    whole, result = started('whole', '--reads')
    assert result.returncode == 0, result.stderr
    calls = list(open(tmp_path / 'whole.log'))
    found = chosen(faults(tmp_path / 'whole.log'), count)
    print(f'{len(found)} faults of {len(faults(tmp_path / "whole.log"))}')
    failed = []
    for number, error, always in found:
        try:
            folder, result = started(f'{number}-{error}-{always}', '--reads', f'--fail={number}', f'--errno={error}',
                                     *(['--always'] if always else []))
            assert_told(result, error, folder)
            again = run_traced(command(folder), folder, log=tmp_path / 'again.log')
            assert again.returncode in ends, again.stderr
            compare(folder, whole)
        except AssertionError as failure:
            failed.append(f'{calls[number - 1].strip()} {error} {always}: {str(failure)[:300]}')
    assert not failed, '\n'.join([f'{len(failed)} of {len(found)}', *failed])


@pytest.mark.stress
@pytest.mark.parametrize('begins', ['new', 'resumed'])
def test_training(begins, run, flags, tmp_path):  # noqa: F811
    # The resumed run starts from step 20.
    begin = {} if begins == 'new' else next(
        tree for tree in run[0].states if 'model.ckpt-20.index' in tree and 'checkpoint' in tree)

    def compare(folder, whole):
        assert_same_bits(last_variables(folder), last_variables(whole))
        assert records_of(folder) == records_of(whole)
        assert names(folder) == names(whole)
        assert [step_of(prefix) for prefix in checkpoints(folder)] == [30, 40]
    assert_survives(lambda folder: script_command('multi_gpu_train.py', train_dir=folder, **flags), begin, compare,
                    40, tmp_path)


@pytest.mark.stress
def test_keeping_a_best_checkpoint(keeping, tmp_path):  # noqa: F811
    def compare(folder, whole):
        assert_same_bits(last_variables(folder), last_variables(whole))
        assert_same_bits(variables(best_prefix(folder)), variables(best_prefix(whole)))
        assert names(folder) == names(whole)
    assert_survives(lambda folder: script_command('multi_gpu_train.py', train_dir=folder, **keeping[0]), {}, compare,
                    30, tmp_path)


@pytest.mark.stress
def test_evaluation(evaluator, tmp_path):  # noqa: F811
    config, traced = evaluator

    def compare(folder, whole):
        assert names(folder) == names(whole)
        assert [record['step'] for record in metrics.read(str(folder), metrics.EVAL)] == [50, 60]
    assert_survives(lambda folder: script_command('cifar10_eval.py', **config(folder)), traced.states[0], compare,
                    30, tmp_path)


@pytest.mark.stress
def test_an_evaluation_that_reads_a_run(run, data_dir, tmp_path):  # noqa: F811
    def compare(folder, whole):
        assert read_tree(folder) == read_tree(whole)
        one, other = ([(record['step'], record['correct']) for record in metrics.read(f'{each}-eval', metrics.EVAL)]
                      for each in (folder, whole))
        assert one == other and len(one) == 1
    assert_survives(lambda folder: script_command(
        'cifar10_eval.py', checkpoint_dir=folder, eval_dir=f'{folder}-eval', data_dir=data_dir, run_once=True,
        num_examples=100, tower_device='cpu'), read_tree(run[1]), compare, 20, tmp_path)


@pytest.mark.stress
def test_reading_data(flags, data_dir, tmp_path):  # noqa: F811
    def compare(folder, whole):
        assert read_tree(folder) == read_tree(whole)
        assert_same_bits(*(last_variables(f'{each}-train') for each in (folder, whole)))
    assert_survives(lambda folder: script_command('multi_gpu_train.py', **dict(
        flags, data_dir=folder, train_dir=f'{folder}-train')), read_tree(data_dir), compare, 20, tmp_path)


@pytest.mark.stress
def test_conversion_of_photos(flags, tmp_path):  # noqa: F811
    def command(folder):
        for file in (folder / 'photos').glob('*/*'):
            os.utime(file, (0, 0))  # the names of prepared photos contain the times
        return script_command('multi_gpu_train.py', **dict(
            flags, dataset=f'{folder}/photos/', data_dir=folder / 'data', max_steps=2, train_dir=f'{folder}-train'))

    def compare(folder, whole):
        found, expected = ({path: content for path, content in read_tree(each).items() if not path.endswith('.lock')}
                           for each in (folder, whole))  # a lock may remain
        assert found == expected
        assert_same_bits(*(last_variables(f'{each}-train') for each in (folder, whole)))
    pictures(tmp_path / 'begin' / 'photos')
    assert_survives(command, read_tree(tmp_path / 'begin'), compare, 30, tmp_path)


@pytest.mark.stress
def test_export(run, tmp_path):  # noqa: F811
    def command(folder):
        return script_command('cifar10_eval.py', checkpoint_dir=folder / 'run', export_dir=folder / '1',
                              tower_device='cpu')

    def compare(folder, whole):
        assert names(folder) == names(whole)
    # The model may already be complete.
    assert_survives(command, {f'run/{path}': content for path, content in read_tree(run[1]).items()}, compare, 20,
                    tmp_path, ends=(0, 2))


def torn(content, size):
    """Returns possible contents of a replaced file on a disk that loses writes, torn at an offset."""
    forms = content[:size], content[:size] + bytes(len(content) - size), bytes(size) + content[size:]
    return sorted({*forms} - {content})


@pytest.mark.stress  # readers of the file are tested by default: below
def test_a_run_with_a_torn_file_is_refused_or_resumes_to_the_same_bits(run, flags, tmp_path):  # noqa: F811
    tree = read_tree(run[1])
    longer = dict(flags, max_steps=50)

    def go_on(name, state):
        folder = write_tree(tmp_path / name, state)
        with tf.Graph().as_default():
            trainer.train(train_settings(train_dir=str(folder), **longer))
        return folder
    reference = go_on('reference', tree)
    replaced = [name for name in tree if name == 'config.json' or name == 'checkpoint' or name.startswith('model.ckpt')]
    assert len(replaced) == 6
    states = [(name, content) for name in replaced for size in sorted({0, 1, len(tree[name]) // 2, len(tree[name]) - 1})
              for content in torn(tree[name], size)]
    for i, (name, content) in enumerate(states):
        try:
            folder = go_on(str(i), {**tree, name: content})
        except UsageError as error:
            assert name in str(error), (name, len(content))
        else:
            assert_same_bits(last_variables(folder), last_variables(reference))
            assert records_of(folder) == records_of(reference)


def checkpoint_in(folder):
    prefix = str(folder / 'model.ckpt-40')
    return None if of_run.corruption(prefix) else of_run.digest(prefix)


def record_in(folder):
    try:
        return look(str(folder)).record
    except UsageError as error:
        assert str(error).startswith(f'{folder}/config.json ')


def best_in(folder):
    try:
        return best_of(str(folder))
    except UsageError as error:
        assert str(error).startswith(f'{folder}/best.json ')


# A reader for each replaced file; it returns the content, or None if the file is unusable.
READERS = {'model.ckpt-40.index': checkpoint_in, 'model.ckpt-40.data-00000-of-00001': checkpoint_in,
           'config.json': record_in, 'best.json': best_in}
EVERY = pytest.mark.parametrize('every', mostly_stress([97, 7], 97))


@EVERY
@pytest.mark.parametrize('name', mostly_stress(READERS, 'model.ckpt-40.index', 'config.json'))
def test_a_torn_file_is_read_as_complete_or_as_missing(name, every, request, tmp_path):
    train_dir = request.getfixturevalue('keeping' if 'best' in name else 'run')[-1]
    tree, read = read_tree(train_dir), READERS[name]
    folder = write_tree(tmp_path / 'torn', tree)
    whole = read(folder)
    assert whole
    forms = [content for size in range(0, len(tree[name]), every) for content in torn(tree[name], size)]
    print(f'{len(forms)} torn forms of {name}')
    for content in forms:
        (folder / name).write_bytes(content)
        assert read(folder) in (None, whole), content


@EVERY
def test_each_record_of_a_torn_file_is_complete_or_missing(every, run, tmp_path):  # noqa: F811
    def found():
        return [record for kind in metrics.KINDS for record in metrics.read(str(tmp_path), kind)]
    path = tmp_path / metrics.NAME
    whole = (run[1] / metrics.NAME).read_bytes()
    path.write_bytes(whole)
    records = found()
    forms = [(size, content) for size in range(0, len(whole), every) for content in torn(whole, size)]
    print(f'{len(forms)} torn forms of {metrics.NAME}')
    for size, content in forms:
        path.write_bytes(content)
        metrics.Log(str(tmp_path)).drop_after(10 ** 6)
        if content.startswith(whole[:size]):  # only complete lines remain
            assert path.read_bytes() == whole[:whole.rfind(b'\n', 0, size) + 1], content
        assert all(record in records for record in found()), content
