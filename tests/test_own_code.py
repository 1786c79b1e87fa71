"""Users' files: their execution, with modules, flags and gradients, and their errors."""
import sys

import numpy as np
import pytest
from absl import flags

from cifar10.base import own_files
from cifar10.base.errors import UsageError
from cifar10.own import code
from tests.helpers import (
    ROOT,
    add_tower,
    evaluated,
    last_variables,
    own_towers,
    rehearsed,
    tf,
    train,
)


def test_a_network_with_changed_code_is_reported_and_its_run_continues(own, settings, tmp_path, capsys):
    text = """
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    return tf.reduce_mean(images, [1, 2]) @ tf.get_variable('w', [3, num_classes])
"""
    train(settings(network=own(text)))
    own(text.replace('mean', 'max'))
    capsys.readouterr()
    train(settings(network=f'{tmp_path}/mine.py:network', max_steps=5))
    assert 'the run was last trained with a different mine.py' in capsys.readouterr().out
    own(text)
    evaluated(tmp_path / 'train', tmp_path / 'eval', num_examples=10)
    assert 'the run was last trained with a different mine.py' in capsys.readouterr().out


@pytest.mark.parametrize('content, function, part', [
    (None, 'f', 'there is no file'), ('x = 1', 'f', 'has no function f; it has none'),
    ('f = 1', 'f', 'has no function f; it has none'),
    ('from os.path import join\ndef network(): pass\ndef _own(): pass', 'netwrk',
     'has no function netwrk (did you mean network?); it has join, network'),
    ('def f(:', 'f', 'SyntaxError: invalid syntax (mine.py, line 1)'), ('import no_such_module', 'f', 'no_such_module'),
    ('def f(images, training): pass', 'f',
     'too many positional arguments; it is called with (images, num_classes, training)'),
    ('def f(images, num_classes, decay=0.1, is_training=True): pass', 'f',
     'its argument is_training is in the wrong position'),
    ('def f(features, labels, mode, params): pass', 'f',
     "missing a required argument: 'params'; it is called with (features, labels, mode)"),
    ('def f(x, labels, mode): pass', 'f', 'its argument labels would get num_classes; write an adapter'),
    ('def f(x, y, is_training): pass', 'f', 'its argument y would get num_classes'),
    *((f'def f(x, num_classes, {other}=None): pass', 'f', f'its argument {other} would get training')
      for other in ('mode', 'params', 'keep_prob', 'reuse', 'scope'))])
def test_a_missing_or_broken_network_is_reported_in_one_line(tmp_path, content, function, part):
    if content:
        (tmp_path / 'mine.py').write_text(content)
    with pytest.raises(UsageError, match='--network=') as refused:
        own_towers(f"{tmp_path / 'mine.py'}:{function}")
    assert part in str(refused.value) and '\n' not in str(refused.value)


@pytest.mark.parametrize('arguments, given', [
    ('x, n, train', 'n, train'), ('x, num_classes=7, is_training=7, scope="net"', 'num_classes, is_training'),
    ('*arguments', 'arguments[1], arguments[2]'), ('images, *rest, scope=None', 'rest[0], rest[1]')])
def test_arguments_may_have_any_names(arguments, given, own):
    name = own(f'def network({arguments}): raise ValueError("given %s, %s" % ({given}))')
    with pytest.raises(UsageError, match='ValueError: given 12, True'):
        rehearsed(name, num_classes=12)


def test_an_error_in_an_imported_file_names_the_lines_in_both_files(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / 'broken_helper.py').write_text('\n\ndef f(:')
    (tmp_path / 'mine.py').write_text('import os\nimport broken_helper\n')
    with pytest.raises(UsageError, match=r'\(broken_helper.py, line 3\) \(line 2 of .*mine.py\)'):
        own_towers(f"{tmp_path / 'mine.py'}:f")


def test_an_import_error_in_a_module_names_the_modules_line(tmp_path):
    (tmp_path / 'layers').mkdir()
    (tmp_path / 'layers' / 'ops.py').write_text('import tensorflow.compat.v1 as tf\n\nINIT = tf.no_such_thing\n')
    (tmp_path / 'mine.py').write_text('from layers.ops import INIT\n')
    with pytest.raises(UsageError, match=r"'no_such_thing' \(line 3 of .*/layers/ops.py\)"):
        own_towers(f"{tmp_path / 'mine.py'}:f")


def test_the_package_does_not_count_as_user_code_of_a_network_beside_it():
    path = str(ROOT / 'cifar10_eval.py')
    code.execute_again(path)
    assert list(own_files.sha256(path)) == ['cifar10_eval.py']


def test_files_in_different_folders_import_their_own_modules(tmp_path):
    found = []
    for folder in ('one', 'other'):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'helper.py').write_text(f'VALUE = {folder!r}')
        for name in ('net', 'opt'):
            (tmp_path / folder / f'{name}.py').write_text('import helper\ndef f(x): return helper.VALUE')
        paths = [str(tmp_path / folder / name) for name in ('net.py', 'opt.py')]
        functions = [code.function('network', f'{path}:f', 'x') for path in paths]
        code.execute_again(paths[0])
        assert [list(own_files.sha256(path)) for path in paths] == [['net.py', 'helper.py'], ['opt.py', 'helper.py']]
        found += functions
    assert [function(0) for function in found] == ['one', 'one', 'other', 'other']
    (tmp_path / 'one' / 'helper.py').write_text('VALUE = 1')
    code.function('network', f"{tmp_path / 'one' / 'net.py'}:f", 'x')
    assert found[0](0) == 1


FLAGS_FILE = '''
import tensorflow.compat.v1 as tf
from absl import flags, logging
from helper import FLAGS as OF_HELPER
flags.DEFINE_float('scale', {}, '')
for name in ('log_dir', 'verbosity', 'v', 'stderrthreshold', 'alsologtostderr'):  # which absl defines, too
    tf.app.flags.DEFINE_string(name, 'mine', '')
assert tf.app.flags.FLAGS.log_dir == flags.FLAGS.v == 'mine'
def network(images, num_classes, training):
    logging.debug('absl logs as before')
    assert flags.FLAGS.verbosity == tf.app.flags.FLAGS.log_dir == 'mine'
    tf.get_variable('seen/%s/%s' % (flags.FLAGS.scale, OF_HELPER.of_helper), [])
    return tf.layers.dense(tf.layers.flatten(images), num_classes)
'''


def test_each_execution_of_a_file_sees_only_its_own_flags(tmp_path, graph):
    before = {name: flags.FLAGS[name].value for name in flags.FLAGS}
    for folder, scale in (('one', 1.5), ('other', 2.5), ('one', 3.5)):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / 'helper.py').write_text(
            f'from absl import flags\nFLAGS = flags.FLAGS\nflags.DEFINE_float("of_helper", {-scale}, "")\n')
        (tmp_path / folder / 'net.py').write_text(FLAGS_FILE.format(scale))
        with tf.variable_scope(str(scale).replace('.', '_')):
            add_tower(own_towers(f'{tmp_path}/{folder}/net.py:network'), tf.zeros([2, 24, 24, 3]))
        assert {name: flags.FLAGS[name].value for name in flags.FLAGS} == before
    seen = [variable.op.name.partition('seen/')[2] for variable in tf.global_variables() if 'seen' in variable.name]
    assert seen == [f'{scale}/{-scale}' for scale in (1.5, 2.5, 3.5)]


def test_two_files_in_one_command_have_separate_flags(own, tmp_path):
    files_of = []
    for name, value in (('a', 1), ('b', 2)):
        text = (f'import tensorflow.compat.v1 as tf\ntf.app.flags.DEFINE_integer("n", {value}, "")\n'
                f'def f(*values): return tf.app.flags.FLAGS.n\n')
        (tmp_path / f'{name}.py').write_text(text)
        files_of.append(code.function('network', f'{tmp_path}/{name}.py:f', 'x'))
    assert [each(0) for each in (*files_of, *files_of)] == [1, 2, 1, 2]


def test_a_users_module_does_not_replace_one_of_the_standard_library(own, tmp_path):
    (tmp_path / 'sched.py').write_text('MINE = 1\n')
    sys.modules.pop('sched', None)
    code.function('network', own('import sched\ndef network(x): return sched.MINE'), 'x')
    import sched
    assert hasattr(sched, 'scheduler')


GRADIENT = '''
import tensorflow.compat.v1 as tf
@tf.RegisterGradient('Doubled')
def doubled(operation, gradient):
    return FACTOR * gradient
def network(images, num_classes, training):
    weights = tf.get_variable('w', [3, num_classes], initializer=tf.zeros_initializer())
    with tf.get_default_graph().gradient_override_map(dict(Identity='Doubled')):
        weights = tf.identity(weights)
    return tf.reduce_mean(images, [1, 2]) @ weights
'''


def test_a_registered_gradient_comes_from_the_files_last_execution(own, graph):
    for factor in 2.0, 3.0:
        name = own(GRADIENT.replace('FACTOR', str(factor)))
        assert rehearsed(name) == []
        with tf.Graph().as_default():
            (gradient, _), = add_tower(own_towers(name), tf.ones([4, 24, 24, 3])).gradients
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                of_logits = 0.1 - np.eye(10)[0]  # all logits are 0, and the class is 0
                np.testing.assert_allclose(session.run(gradient), factor * np.tile(of_logits, [3, 1]), rtol=1e-5)


@pytest.mark.stress
def test_an_error_in_a_step_names_the_line_and_python_code_is_not_exported(call, own, tmp_path):
    text = """
import tensorflow.compat.v1 as tf
def net(images, num_classes, training):
    x = tf.reduce_mean(images, [1, 2])
    if training is WHERE:
        x += tf.ensure_shape(tf.numpy_function(lambda x: CALLED, [x], tf.float32), x.shape)
    return x @ tf.get_variable('weights', [3, num_classes])
"""
    name = own(text.replace('WHERE', 'True').replace('CALLED', '1 / 0'), 'net')
    status, error = call('multi_gpu_train.py', f'--network={name}', '--tower_device=cpu')
    assert status == 1 and f" (line 6 of {tmp_path / 'mine.py'})" in error
    own(text.replace('WHERE', 'False').replace('CALLED', 'x'))
    assert call('multi_gpu_train.py', f'--network={name}', '--tower_device=cpu')[0] == 0
    target = tmp_path / 'model'
    status, error = call('cifar10_eval.py', f"--checkpoint_dir={tmp_path / 'train'}", f'--export_dir={target}')
    assert status == 2 and 'tower_0/network/PyFunc of the network calls a Python function (line ' in error
    assert not target.exists()


def test_lookup_tables_and_checkpoint_values_work_in_training_and_evaluation(own, settings, tmp_path):
    values = np.arange(30, dtype=np.float32).reshape(3, 10)
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.get_variable('theirs', initializer=values).initializer)
        prefix = tf.train.Saver().save(session, str(tmp_path / 'theirs'))
    train(settings(learning_rate=0.0, num_towers=2, network=own(f"""
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(['scale'], [0.5]), 0.0)
    weights = tf.get_variable('weights', [3, num_classes])
    tf.train.init_from_checkpoint('{prefix}', {{'theirs': 'weights'}})
    return table.lookup(tf.constant('scale')) * tf.reduce_mean(images, [1, 2]) @ weights
""")))
    evaluated(tmp_path / 'train', tmp_path / 'eval', num_examples=10)
    np.testing.assert_array_equal(last_variables(tmp_path / 'train')['weights'], values)
