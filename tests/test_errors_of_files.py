"""Each system call on a run's files fails: a line names the file and the cause, and the same command goes on later."""
import errno
import json
import os

import pytest

from cifar10.base.errors import UsageError
from cifar10.run.names import step_of
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.crashes import names, read_tree, run_traced, write_tree
from tests.helpers import assert_same_bits, checkpoints, last_variables, mostly_stress, script_command, tf
from tests.test_crashes import evaluator, flags, records_of, run  # noqa: F401 (fixtures)
from tests.tracer import form

# The errors that a call may have, and 0: a write of half the bytes.
ERRORS = {
    'write': (errno.ENOSPC, errno.EIO, errno.EDQUOT, 0),
    'open': (errno.EMFILE, errno.EACCES, errno.EROFS, errno.ESTALE),
    'rename': (errno.EIO, errno.EROFS, errno.ENOSPC), 'remove': (errno.EIO, errno.EACCES, errno.EROFS),
    'sync': (errno.EIO, errno.ENOSPC, errno.EDQUOT), 'make': (errno.ENOSPC, errno.EACCES, errno.EROFS),
    'read': (errno.EIO, errno.ESTALE)}
KINDS = dict(write='write', pwrite64='write', writev='write', open='open', openat='open', creat='open', rename='rename',
             renameat='rename', renameat2='rename', unlink='remove', unlinkat='remove', rmdir='remove', fsync='sync',
             fdatasync='sync', mkdir='make', mkdirat='make', ftruncate='write', truncate='write', link='make',
             read='read', pread64='read', fallocate='write', sendfile='write',
             copy_file_range='write')


def places(log):
    """Returns the numbers of the first call of each name on files of each name, with the errors that each may have."""
    found = {}
    for number, line in enumerate(open(log), 1):
        name, *paths = json.loads(line)
        errors = [error for error in ERRORS[KINDS[name]] if error or name == 'write']
        found.setdefault((name, *form(paths)), (number, errors))
    return list(found.values())


def faults(log):
    """Returns (number of a call, its error, whether all later ones fail as well), for each place and error."""
    return [(number, error, always) for number, errors in places(log) for error in errors for always in (False, True)]


def assert_told(result, error, folder):
    """Asserts that a process ended well, or with one line that names a file of the folder and the cause."""
    assert 'Traceback' not in result.stderr, result.stderr
    if result.returncode == 0:
        return
    lines = [line for line in result.stderr.splitlines() if ' error: ' in line]
    # TensorFlow takes a stale file handle for a device that was lost.
    assert (result.returncode in (1, 2) or error == errno.ESTALE) and len(lines) == 1, result
    causes = [os.strerror(error)] if error else ['']
    if error == errno.EACCES:
        causes.append('belongs to another user and cannot be opened')
    assert str(folder) in lines[0] and any(cause in lines[0] for cause in causes), lines


def chosen(found, count):
    """Returns every so many of the faults, so that about `count` remain."""
    return found[::max(len(found) // count, 1)]


@pytest.mark.parametrize('reads', [False, True])
@pytest.mark.parametrize('begins', ['new', 'resumed'])
@pytest.mark.parametrize('count', mostly_stress([1, 60], 1))
def test_training(count, begins, reads, run, flags, tmp_path):  # noqa: F811
    # A run that is resumed goes on from step 20.
    state = {} if begins == 'new' else {
        **next(tree for tree in run[0].states if 'model.ckpt-20.index' in tree and 'checkpoint' in tree)}
    options = ['--reads'] if reads else []

    def traced(name, *more):
        folder = tmp_path / name
        if state:
            write_tree(folder, state)
        result = run_traced(script_command('multi_gpu_train.py', train_dir=folder, **flags), folder, *options, *more,
                            log=tmp_path / f'{name}.log')
        return folder, result
    _, whole = traced('whole')
    assert whole.returncode == 0, whole.stderr
    found = faults(tmp_path / 'whole.log')
    assert len(found) > 100
    calls = list(open(tmp_path / 'whole.log'))
    failed = []
    for number, error, always in chosen(found, count):
        try:
            folder, result = traced(f'{number}-{error}-{always}', f'--fail={number}', f'--errno={error}',
                                    *(['--always'] if always else []))
            assert_told(result, error, folder)
            again = run_traced(script_command('multi_gpu_train.py', train_dir=folder, **flags), folder,
                               log=tmp_path / 'again.log')
            assert again.returncode == 0, again.stderr
            assert_same_bits(last_variables(folder), last_variables(run[1]))
            assert records_of(folder) == records_of(run[1])
            assert names(folder) == names(run[1])
            assert [step_of(prefix) for prefix in checkpoints(folder)] == [30, 40]
        except AssertionError as failure:
            failed.append(f'{calls[number - 1].strip()} {error} {always}: {str(failure).splitlines()[0]}')
    assert not failed, '\n'.join(failed)


@pytest.mark.parametrize('count', mostly_stress([1, 40], 1))
def test_evaluation(count, evaluator, tmp_path):  # noqa: F811
    config, traced_before, = evaluator
    state = traced_before.states[0]

    def traced(name, *more):
        folder = write_tree(tmp_path / name, state)
        return folder, run_traced(script_command('cifar10_eval.py', **config(folder)), folder, '--reads', *more,
                                  log=tmp_path / f'{name}.log')
    whole, result = traced('whole')
    assert result.returncode == 0
    for number, error, always in chosen(faults(tmp_path / 'whole.log'), count):
        folder, result = traced(f'{number}-{error}-{always}', f'--fail={number}', f'--errno={error}',
                                *(['--always'] if always else []))
        assert_told(result, error, folder)
        assert run_traced(script_command('cifar10_eval.py', **config(folder)), folder,
                          log=tmp_path / 'again.log').returncode == 0
        assert names(folder) == names(whole)
        assert json.loads((folder / 'best' / 'best.json').read_text())['step'] == 60


def torn(content):
    """Returns what a disk that lies may hold of a file that was replaced: parts from its begin, perhaps with zeros."""
    sizes = sorted({0, 1, len(content) // 2, len(content) - 1})
    return [content[:size] + bytes(zeros) for size in sizes for zeros in (0, len(content) - size)]


@pytest.mark.parametrize('count', mostly_stress([4, 1000], 4))
def test_a_torn_file_is_read_as_whole_or_not_there(count, run, flags, tmp_path):  # noqa: F811
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
    states = [(name, content) for name in replaced for content in torn(tree[name])]
    for i, (name, content) in enumerate(chosen(states, count)):
        try:
            folder = go_on(str(i), {**tree, name: content})
        except UsageError as error:
            assert name in str(error), (name, len(content))
        else:
            assert_same_bits(last_variables(folder), last_variables(reference))
            assert records_of(folder) == records_of(reference)
