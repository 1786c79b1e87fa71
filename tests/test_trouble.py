"""docs/trouble.md: its examples match the programs' output, and it covers each error in the middle of a run."""
import ast
import errno
import os
import re

import pytest

from cifar10.base.errors import RunError
from cifar10.run.failures import plain_errors
from tests.helpers import ROOT, tf
from tests.test_errors_of_files import ERRORS

DIVIDING = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.reshape(images, [-1, 24 * 24 * 3])
    x = x / (4 - tf.cast(tf.train.get_or_create_global_step(), tf.float32))
    x = tf.debugging.check_numerics(x, 'after the division')
    return tf.matmul(x, tf.get_variable('w', [24 * 24 * 3, num_classes]))
'''
SECTIONS = dict(re.findall(r'^## (.*)\n([^#]*(?:#[^#\n]+\n[^#]*)*)', (ROOT / 'docs' / 'trouble.md').read_text(), re.M))


def test_a_check_in_the_network_names_the_nonfinite_value(call, own, tmp_path):
    assert 'x = tf.debugging.check_numerics(x, ' in SECTIONS['NaN']
    status, error = call('multi_gpu_train.py', f'--network={own(DIVIDING)}', '--tower_device=cpu', '--batch_size=8',
                         '--max_steps=20')
    assert status == 1
    assert f'after the division : Tensor had Inf values (line 6 of {tmp_path}/mine.py); ' in error


def test_an_error_of_memory_names_the_flag_that_needs_less():
    with pytest.raises(RunError, match=r'^OOM when allocating tensor; use a smaller --batch_size$'), plain_errors():
        raise tf.errors.ResourceExhaustedError(None, None, 'OOM when allocating tensor')


def test_the_page_covers_each_error_in_the_middle_of_a_run():
    page = ' '.join((ROOT / 'docs' / 'trouble.md').read_text().split())
    words = [re.compile(re.escape(word).replace(r'\.\.\.', '.*')) for word in re.findall(r'\*\*(.*?)\*\*', page)]
    found = set()
    rooms = [ROOT / 'cifar10' / room for room in ('run', 'training', 'cluster', 'evaluation', 'data')]
    for path in [path for room in rooms for path in room.rglob('*.py')]:
        # member.py raises a UsageError if another task has returned.
        of_task = ('UsageError', 'error') if path.name == 'member.py' else ()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    'RunError', 'TemporaryError', 'diverged', 'end_process', 'tf.debugging.assert_equal',
                    'tf.strings.join', *of_task):
                message = ''.join(part.value for part in ast.walk(node)
                                  if isinstance(part, ast.Constant) and isinstance(part.value, str))
                if len(message) > 15:  # shorter messages only wrap other functions' messages
                    found.add(message)
                    assert any(word.search(message) for word in words), (path, message)
    assert len(found) >= 15
    # The operating system's errors of files; an interrupted call is retried.
    causes = {os.strerror(error) for error in set().union(*ERRORS.values()) - {0, errno.EINTR}}
    assert 'Input/output error' in causes
    assert not [cause for cause in causes if not any(word.search(cause) for word in words)]
