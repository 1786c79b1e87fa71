"""Terminal output: TensorFlow's standard start-up lines are hidden, all others are shown; exit statuses."""
import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from cifar10.base import console
from cifar10.base.errors import RunError, TemporaryError, UsageError, reason
from cifar10.programs import program
from tests import helpers
from tests.forked import Forked
from tests.helpers import run_forked, run_script


def python(code):
    return helpers.python('-c', code, environment={k: v for k, v in os.environ.items() if k != 'TF_CPP_MIN_LOG_LEVEL'})


@pytest.mark.stress
def test_tensorflow_starts_without_output():
    result = python('from cifar10.base import startup; startup.start_tensorflow(); import tensorflow as tf;'
                    'print(tf.executing_eagerly())')
    assert (result.stdout, result.stderr) == ('False\n', '')


def test_unknown_lines_are_passed_through_in_order():
    result = python('import os; from cifar10.base import startup\n'
                    'with startup.quiet_stderr():\n'
                    '    os.write(2, b"first\\nI0 port.cc:153] oneDNN custom operations are on. You may\\nlast")\n'
                    'os.write(2, b"\\nafter\\n")')
    assert result.stderr == 'first\nlast\nafter\n'


def test_lines_of_all_threads_go_to_the_current_receiver(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, 'isatty', lambda: True, raising=False)
    monkeypatch.setattr(console.stat, 'S_ISFIFO', lambda mode: False)
    lines = []
    with console.Output(lines.append).used():
        thread = threading.Thread(target=console.say, args=['', 'from a thread'])
        thread.start()
        thread.join()
        with console.Output().used(), console.progress_bar(total=2) as bar:
            console.say('above', 'the bar')
            assert not bar.disable
        assert console.progress_bar(total=2).disable
        console.say('', 'last')
    console.say('', 'printed')
    output, errors = capsys.readouterr()
    assert lines == ['from a thread', 'last']
    assert re.findall('above      the bar|printed|last', output) == ['above      the bar', 'printed']
    assert '0/2' in errors


def test_reasons_of_tensorflow_errors_keep_the_cause_and_drop_the_advice():
    # In the words of TensorFlow's collectives.
    cause = 'Collective ops is aborted by: NCCL: unable to load the library'
    advice = 'The error could be from a previous operation. Restart your program to reset.'
    failing = tf.debugging.check_numerics(np.nan, f'{cause}\n{advice}')
    with tf.Session() as session, pytest.raises(tf.errors.OpError) as raised:
        session.run(failing)
    assert reason(raised.value) == cause
    both = (f"Graph execution error:\n\nDetected at node 'a' defined at (most recent call last):\nNode: 'a'\n"
            f"Detected at node 'b' defined at (most recent call last):\nNode: 'b'\n2 root error(s) found.\n"
            f'  (0) INTERNAL: {cause}\n{advice}\n\t [[{{{{node a}}}}]]\n  (1) CANCELLED: other')
    assert reason(tf.errors.InternalError(None, None, both)) == cause
    assert reason(tf.errors.InternalError(None, None, '')) == 'InternalError'
    repeated = 'The same RunGraph (Worker) request was received twice.'
    assert reason(tf.errors.AbortedError(None, None, f'{repeated} goo.gle/debugonly   graph_handle: "00"')) == repeated


def test_reasons_of_errors_keep_the_cause_and_optionally_the_task_but_no_dataset():
    session = tf.Session(tf.train.Server.create_local_server().target)
    with session, pytest.raises(tf.errors.OpError) as raised:
        session.run(tf.io.read_file(tf.placeholder_with_default('/nowhere.jpg', [])))
    assert 'From /job:' in str(raised.value)
    assert reason(raised.value) == '/nowhere.jpg: No such file or directory'
    assert reason(raised.value, with_task=True) == 'localhost 0: /nowhere.jpg: No such file or directory'
    names = tf.data.Dataset.from_tensors(tf.placeholder_with_default('/nowhere.jpg', []))
    contents = tf.data.experimental.get_single_element(names.map(tf.io.read_file, num_parallel_calls=2).batch(1))
    with tf.Session() as session, pytest.raises(tf.errors.OpError) as raised:
        session.run(contents)
    assert 'Error in user-defined function' in str(raised.value)
    assert reason(raised.value, with_task=True) == '/nowhere.jpg: No such file or directory'
    both = ("Graph execution error:\n\nDetected at node 'a' defined at (most recent call last):\nNode: 'a'\n"
            f"{'=' * 21}\nINVALID_ARGUMENT: From /job:worker/replica:0/task:1:\nassertion failed: [it has changed]\n")
    assert reason(tf.errors.InvalidArgumentError(None, None, both)) == 'it has changed'
    assert reason(tf.errors.InvalidArgumentError(None, None, both), with_task=True) == 'worker 1: it has changed'


LINES = """
import datetime
import sys
from cifar10.base.console import Line, say
from cifar10.base.errors import UsageError
from cifar10.programs import program
def main():
    say('advice', 'a text of many words, ' * 9 + 'with a-path/' * 30 + ' and an end')
    say('warning', 'another text of ' + 'many words ' * 12)
    say('', 'a table   of   columns')
    say(datetime.datetime(2026, 11, 27, 9, 3, 24, 995327), 'step 10, loss = 0.59')
    raise UsageError('--flag=value is ' + 'wrong ' * 30)
sys.exit(program.run(main))
"""


@pytest.mark.parametrize('columns, environment, has_colour', [
    (80, {}, True), (100, {'NO_COLOR': '1'}, False), (100, {'TERM': 'dumb'}, False)])
def test_terminal_lines_are_wrapped_between_words_and_coloured(tmp_path, columns, environment, has_colour):
    (tmp_path / 'script.py').write_text(LINES)
    command = [sys.executable, tmp_path / 'script.py']
    environment = {**{k: v for k, v in os.environ.items() if k not in ('NO_COLOR', 'COLUMNS')}, 'TERM': 'xterm',
                   'PYTHONPATH': str(helpers.ROOT), **environment}
    reading, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack('4H', 24, columns, 0, 0))
    process = Forked(command, errors=terminal, output=os.dup(terminal), environment=environment)
    shown = helpers.rest_of(reading).replace('\r\n', '\n')
    assert process.wait(timeout=helpers.patient(30)) == 2
    colours = re.findall(r'\x1b\[(\d+)m(.*?)\x1b\[0m', shown)
    assert colours == ([('1', 'advice'), ('33', 'warning'), ('31', 'error:')] if has_colour else [])
    plain = re.sub(r'\x1b\[\d+m', '', shown)
    assert '\x1b' not in plain
    lines = plain.splitlines()
    assert all(len(line) <= columns or 'a-path' in line for line in lines) and len(lines) > 12
    assert all(line.startswith(' ' * 11) for line in lines if line.startswith(' '))
    piped = run_forked(command, environment=environment)
    assert '\x1b' not in piped.stdout + piped.stderr
    whole = [line.rstrip() for line in (piped.stdout + piped.stderr).splitlines()]
    assert whole[3] == '2026-11-27 09:03:24.995327: step 10, loss = 0.59' and len(whole) == 5
    whole[1], whole[3] = whole[1].replace('warning: ', 'warning    '), '09:03:24   step 10, loss = 0.59'
    assert re.sub(r'\n {11}', ' ', plain).splitlines() == whole


HOSTILE = '\x1b]0;title\x07\x1b[31mred\x9b2J\r\n\u202eforged\u2028'


def test_text_that_could_control_a_terminal_is_escaped(capsys):
    """In lines, errors, and the output of a local cluster's processes."""
    shown = r'\x1b]0;title\x07\x1b[31mred\x9b2J\r\n\u202eforged\u2028'
    console.say('', f'a {HOSTILE} né 犬')
    lines = []
    with console.Output(lines.append).used():
        console.say('word', HOSTILE)
    assert capsys.readouterr().out == f'a {shown} né 犬\n' and lines == [f'word       {shown}']
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys.stdout, 'reconfigure', lambda **options: None, raising=False)

        def fail():
            raise UsageError(HOSTILE)
        assert program.run(fail) == 2
    assert shown.replace(r'\r\n', ' ').removesuffix(r'\u2028') in capsys.readouterr().err
    code = f'import sys; sys.stdout.buffer.write({HOSTILE.encode()!r})'
    output = helpers.python('-m', 'cifar10', 'local_cluster', '--workers=1', '--', sys.executable, '-c', code).stdout
    assert output.replace('\n', '').isprintable() and r'\x1b[31mred\x9b2J' in output


@pytest.mark.parametrize('error, status', [
    (RunError('a'), 1), (TemporaryError('a'), 75), (OSError(28, 'No space left on device', '/x'), 1),
    (KeyboardInterrupt(), 130)])
def test_exit_statuses(error, status, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, 'reconfigure', lambda **options: None, raising=False)

    def main():
        raise error
    assert program.run(main) == status and len(capsys.readouterr().err.splitlines()) == 1


def test_json_output_leaves_nothing_else_on_standard_output(data_dir, tmp_path):
    (tmp_path / 'prints.py').write_text("""
import os
import tensorflow.compat.v1 as tf

def net(images, num_classes, training):
    print('of Python')
    os.write(1, b'of the descriptor\\n')
    os.system('echo of a child')
    x = tf.reshape(images, [-1, images.shape[1] * images.shape[2] * 3])
    return tf.matmul(x, tf.get_variable('w', [x.shape[1], num_classes], initializer=tf.zeros_initializer()))
""")
    run = dict(train_dir=tmp_path / 'run', data_dir=data_dir, tower_device='cpu')
    new = dict(run, dataset='shapes', network=f'{tmp_path}/prints.py:net', batch_size=8, max_steps=1)
    assert run_script('multi_gpu_train.py', **new).returncode == 0
    evaluated = run_script('cifar10_eval.py', **run, run_once=True, json=True, num_examples=10)
    line, = evaluated.stdout.splitlines()
    assert isinstance(json.loads(line), dict) and evaluated.returncode == 0
    assert all(f'of {each}' in evaluated.stderr for each in ('Python', 'the descriptor', 'a child'))
