"""Users' networks: they train in every mode, can be evaluated, and must follow the rules of towers."""
import json
import os
import sys

import numpy as np
import pytest

from cifar10.base import graphs
from cifar10.base.directories import CURVES
from cifar10.base.errors import UsageError
from cifar10.model.network_draws import at_position
from tests.helpers import (
    ROOT,
    add_tower,
    last_variables,
    own_towers,
    rehearsed,
    run_forked,
    tf,
    train,
    value_of,
)
from tests.test_picture_files import encoded

LINEAR = '''
import tensorflow.compat.v1 as tf
from cifar10.model import add_moving_statistic, uniform_like
OUTSIDE = tf.constant(2.0)
def weights_of():
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.get_variable('weights', [24 * 24 * 3, 10])
def linear(images, num_classes, training):
    pixels = tf.reshape(images, [-1, 24 * 24 * 3])
    weights = tf.get_variable('weights', [24 * 24 * 3, num_classes], initializer=tf.zeros_initializer())
    {}
    return {}
'''


STATE = 'state = tf.get_variable("state", [], initializer=tf.zeros_initializer(), trainable=False)'


@pytest.fixture
def linear(own):
    """A function that writes a network with one line changed and returns its name."""
    return lambda line='pass', result='pixels @ weights': own(LINEAR.format(line, result), 'linear')


# Runs scripts in order in a process with deterministic operations. TensorFlow then refuses random operations, for
# example in initial values, in a graph without a seed.
DETERMINISTIC = """
import json, runpy, sys
from cifar10.base import startup
startup.start_tensorflow()
from cifar10.base import graphs
graphs.turn_on_determinism()
for command in json.loads(sys.argv[1]):
    sys.argv = command
    try:
        runpy.run_path(command[0], run_name='__main__')
    except SystemExit as end:
        if end.code:
            raise
"""


@pytest.mark.stress
def test_all_programs_work_with_deterministic_operations(linear, tmp_path, data_dir):
    network = linear('bias = tf.get_variable("bias", [10], initializer=tf.truncated_normal_initializer())',
                     'pixels @ weights + bias')
    (tmp_path / 'script.py').write_text(DETERMINISTIC)
    picture = tmp_path / 'picture.png'
    picture.write_bytes(encoded(np.zeros([40, 40, 3], np.uint8), 'PNG'))
    run = [str(ROOT / 'multi_gpu_train.py'), '--dataset=shapes', f'--data_dir={data_dir}', '--tower_device=cpu',
           f'--network={network}', '--batch_size=8', '--max_steps=2', '--summary_steps=0', '--learning_rate=0.01']
    first = f"--train_dir={tmp_path / 'first'}"
    tool = [str(ROOT / 'cifar10_eval.py'), f"--checkpoint_dir={tmp_path / 'first'}", '--tower_device=cpu']
    commands = [
        [*run, first, '--check'], [*run, first, '--deterministic', '--eval_steps=1'],
        [*run, f"--train_dir={tmp_path / 'second'}", f"--warm_start={tmp_path / 'first'}", '--freeze=bias'],
        [*tool, f"--eval_dir={tmp_path / 'eval'}", '--run_once', '--num_examples=10'],
        [*tool, f'--image={picture}'], [*tool, f"--export_dir={tmp_path / 'exported'}"]]
    result = run_forked([sys.executable, str(tmp_path / 'script.py'), json.dumps(commands)])
    assert result.returncode == 0, result.stdout + result.stderr
    assert last_variables(tmp_path / 'second')['global_step'] == 2 and (tmp_path / 'exported').exists()


@pytest.mark.parametrize('line, result, part', [
    ('pass', 'pixels @ weights[:, :7]', 'it returns a tensor float32 (8, 7) (line 12 of mine.py); return logits, '
     'float [images, 10]'),
    ('pass', 'None', 'it returns None'),
    ('pass', '(pixels @ weights)[:4]', 'it returns 4 rows for 8 images (line '),
    ('pass', 'pixels[:, :10]', 'no variable has a gradient'),
    ('1 / 0', 'None', 'ZeroDivisionError: division by zero (line 11 of '),
    ('keep = 1.0 if training else tf.placeholder(tf.float32, [], name="keep_prob")', 'pixels @ weights * keep',
     'it needs the placeholder keep_prob, which nothing feeds (line 11 of mine.py); leave out the operations that need '
     'it, or feed it: return logits, {placeholder: value}'),
    ('loss = tf.nn.l2_loss(tf.placeholder(tf.float32, [10], "labels")); tf.losses.add_loss(loss)', 'pixels @ weights',
     'it needs the placeholder labels, which nothing feeds (line 11 of mine.py)'),
    ('pass', '(pixels @ weights, {"layer": pixels})', "has the key 'layer'; use placeholders as keys: "
     'return logits, {placeholder: value}'),
    ('pass', 'pixels @ weights * OUTSIDE',
     '(line 12 of mine.py); a tensor from outside the function belongs to a different graph'),
    ('import tensorflow as tf2; tf2.get_current_name_scope(); tf2.get_variable("more", [])', 'pixels @ weights',
     "no attribute 'get_variable' (line 11 of mine.py); write import tensorflow.compat.v1 as tf"),
    ('uniform_like(pixels)', 'pixels @ weights', 'only if `training` is true'),
    ('tf.add_to_collection(tf.GraphKeys.LOSSES, tf.reduce_sum(weights, 0))', 'pixels @ weights', 'ValueError: Shapes'),
    ('raise SystemExit(0)', 'None', 'SystemExit: 0 (line 11 of '),
    ('more = 1.0 if training else tf.get_variable("more", [])', 'pixels @ weights * more',
     'the variable more is [], float32 in evaluation, but missing in training'),
    ('more = tf.get_variable("more", [], collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)',
     'pixels @ weights * more', 'the variable more is not in tf.GraphKeys.GLOBAL_VARIABLES'),
    ('more = tf.get_variable("more", [], tf.bfloat16)', 'pixels @ weights',
     'the trainable variable more is not float32 (line 11 of mine.py); make it float32'),
    ('tf.add_to_collection(tf.GraphKeys.LOSSES, tf.reduce_sum(tf.raw_ops.ResizeArea(images=weights[None, ..., None], '
     'size=[2, 2])))', 'pixels @ weights', 'LookupError: No gradient defined'),
    ('state = tf.get_variable("state", [], tf.float64, trainable=False); add_moving_statistic(state, 1.0, 0.9)',
     'pixels @ weights', 'float32 variable with trainable=False'),
    (f'{STATE}; add_moving_statistic(state, 0.5 + state, 1.5)', 'pixels @ weights', 'a fraction to keep from 0 to 1'),
    *[(f'{STATE}; used = {write}', 'pixels @ weights + 0.0 * tf.cast(used, tf.float32)',
       f'its operation {name} changes a variable in an unsupported way (line 11 of mine.py)') for write, name in (
        ('tf.reduce_mean(tf.scatter_nd_update(weights_of(), [[0, 0]], [1.0]))', 'ResourceScatterNdUpdate'),
        ('tf.train.get_or_create_global_step().assign_add(1)', 'AssignAddVariableOp'))],
])
def test_a_broken_rule_is_reported_in_one_line(linear, tmp_path, line, result, part):
    name = linear(line, result)
    with pytest.raises(UsageError) as refused:
        rehearsed(name, batch_size=8)
    message = str(refused.value)
    assert part in message.replace(f'{tmp_path}/', '') and name in message and '\n' not in message


TOP, INSIDE, QUEUE = 'top', 'inside', 'which nothing starts or fills (line 8 of '
IDIOMS = [
    # (place, a line of a TensorFlow 1 file, part of the refusal; None if it is accepted).
    (TOP, 'tf.disable_v2_behavior()', None), (TOP, 'tf.enable_eager_execution()', None),
    (TOP, 'tf.disable_resource_variables(); tf.disable_control_flow_v2()', None),
    (TOP, 'import tensorflow as tf2; tf2.compat.v1.disable_v2_behavior(); tf.TensorShape([3])[0].value', None),
    (INSIDE, 'assert images.get_shape()[1].value == 24', "(line 8 of mine.py); remove .value, or call tf."),
    (INSIDE, 'images += 0.0 * tf.cast(tf.train.get_global_step(), tf.float32)', None),
    (TOP, 'import argparse; argparse.ArgumentParser().parse_args()', None),
    (TOP, 'import argparse; p = argparse.ArgumentParser(); p.add_argument("x"); p.parse_args()', 'SystemExit: 2'),
    (TOP, 'tf.app.flags.DEFINE_integer("own_n", 3, ""); assert tf.app.flags.FLAGS.own_n == 3', None),
    (TOP, 'tf.app.run()', "AttributeError: module '__main__' has no attribute 'main' (line 4 of mine.py)"),
    (TOP, 'import sys; assert len(sys.argv) == 1; sys.path.clear(); sys.argv.append("mine")', None),
    (TOP, 'tf.InteractiveSession()', None),
    (TOP, 'from cifar10 import inference', 'rename your file'),
    (TOP, 'import tensorflow as tf2; tf2.layers.dense', None),
    (TOP, 'tf.set_random_seed(1)', None),
    *[(place, 'tf.reset_default_graph()', 'Do not use tf.reset_default_graph()') for place in (TOP, INSIDE)],
    (INSIDE, 'images = tf.train.shuffle_batch([images], 8, 100, 10, enqueue_many=True)', QUEUE),
    (INSIDE, 'images += tf.cast(tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next(), "float")', QUEUE),
    (INSIDE, 'images += tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([0], [1.0]), 0.0)'
     '.lookup(tf.constant(0))', None),
    (INSIDE, 'tf.get_variable_scope().reuse_variables()', 'the towers share variables without it'),
    (INSIDE, 'tf.identity(images, "x"); images = tf.get_default_graph().get_tensor_by_name("x:0")', None),
    (INSIDE, 'images *= tf.get_variable("more", [], trainable=training)', None),
    (INSIDE, 'with tf.name_scope("x/"): tf.add_to_collection("activations", tf.identity(images))', None),
    (INSIDE, 'tf.RegisterGradient("OfMine")(lambda op, grad: grad)', None),
    (INSIDE, 'tf.train.init_from_checkpoint("/nowhere", {"/": "/"})', 'matching files for /nowhere (line 8 of mine.py'),
    (INSIDE, 'tf.train.create_global_step()', 'use tf.train.get_or_create_global_step()'),
    (INSIDE, 'tf.nn.l2_loss(tf.global_variables()[0])', 'or use tf.trainable_variables()'),
    (INSIDE, 'images = tf.keras.layers.Conv2D(3, 1, name="mine")(images)', None),
    (INSIDE, 'images *= tf.cond(training, lambda: [1.0], lambda: [tf.constant(2.0)])', None),
    (INSIDE, 'images += np.random.normal()', '(line 8 of mine.py) changes each time the file is executed; give'),
    (INSIDE, 'images += np.random.default_rng(0).normal()', None)]
IDIOM = '''
import numpy as np
import tensorflow.compat.v1 as tf
{top}


def net(images, num_classes, training):
    {inside}
    pixels = tf.reshape(images, [-1, 24 * 24 * 3])
    return pixels @ tf.get_variable('weights', [24 * 24 * 3, num_classes])
'''


@pytest.mark.parametrize('place, line, refused', IDIOMS)
def test_idioms_of_tensorflow_1_work_or_are_refused_without_side_effects(own, tmp_path, place, line, refused):
    def state():
        return (sys.argv, list(sys.path), tf.executing_eagerly(), tf.resource_variables_enabled(), tf.app,
                tf.control_flow_v2_enabled(), type(tf.TensorShape([1])[0]), tf.disable_v2_behavior,
                tf.compat.v1.disable_v2_behavior)
    name = own(IDIOM.format(**{TOP: 'pass', INSIDE: 'pass', place: line}), 'net')
    before = state()
    try:
        warnings = rehearsed(name, batch_size=8)
    except UsageError as error:
        assert refused and refused in str(error).replace(f'{tmp_path}/', '') and name in str(error)
    else:
        assert refused is None and warnings == []
    assert state() == before


@pytest.mark.parametrize('line', [
    'int(images.shape[1])', 'tf.zeros(images.shape)', 'tf.reshape(images, [2, -1, images.shape[2]])'])
def test_the_use_of_an_unknown_size_is_explained(own, line):
    name = own(IDIOM.format(top='pass', inside=line), 'net')
    with pytest.raises(UsageError, match=r'line 8 of .*; sizes are unknown with several --sizes'):
        rehearsed(name, sizes=(24, 32))


@pytest.mark.parametrize('outputs, warned', [
    ('tf.nn.softmax(logits)', 'it returns the output of a Softmax'),
    ('tf.nn.relu(logits)', 'it returns the output of a Relu'),
    ('tf.nn.log_softmax(logits)', None)])
def test_outputs_that_cannot_be_logits_get_a_warning(outputs, warned, own):
    found = rehearsed(own(f"""
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    logits = tf.reduce_mean(images, [1, 2]) @ tf.get_variable('weights', [3, num_classes])
    return {outputs}
"""))
    assert [warned in warning for warning in found] == [True] * (warned is not None)


def test_code_written_for_float32_computes_in_half_precision(linear, graph):
    name = linear('pixels *= tf.get_variable("more", [])')
    assert rehearsed(name, dtype=tf.bfloat16) == []
    add_tower(own_towers(name), tf.zeros([4, 24, 24, 3]), dtype=tf.bfloat16)
    assert {variable.dtype.base_dtype for variable in tf.trainable_variables()} == {tf.float32}
    products = [operation.get_attr('T') for operation in graph.get_operations() if operation.type == 'MatMul']
    assert products == [tf.bfloat16] * 3  # forward, and for the gradients of pixels and weights


@pytest.mark.parametrize('line, part', [
    ('pixels = tf.nn.dropout(pixels, 0.5) if training else pixels',
     'cifar10.model.dropout or uniform_like'),
    ('pixels += tf.cond(tf.reduce_any(pixels > 9), lambda: tf.random.normal([]), lambda: 0.0) if training else 0.0',
     'random_normal/RandomStandardNormal draws different random numbers after a resume'),
    ('pixels = tf.nn.dropout(pixels, 0.5)', 'draws random numbers in evaluation, so predictions vary'),
])
def test_suspicious_code_gets_a_warning(linear, line, part):
    assert any(part in warning for warning in rehearsed(linear(line)))


def test_a_dropout_without_effect_in_evaluation_gets_no_warning_there(linear):
    warning, = rehearsed(linear('pixels = tf.nn.dropout(pixels, keep_prob=tf.constant(0.5 if training else 1.0))'))
    assert 'draws different random numbers after a resume' in warning


STRIDED = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.nn.conv2d(images, tf.get_variable('strided', [1, 1, 3, 8]), 2, 'SAME')
    return tf.reduce_mean(x, [1, 2]) @ tf.get_variable('last', [8, num_classes])
'''


def test_a_users_network_uses_the_mended_gradients(own, graph):
    add_tower(own_towers(own(STRIDED)), tf.zeros([2, 24, 24, 3]))
    strides = [operation.get_attr('strides') for operation in graph.get_operations()
               if operation.type == 'Conv2DBackpropFilter']
    assert strides == [[1, 1, 1, 1]]


LARGE = '''
import numpy as np, tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    equal = tf.constant(1.0, shape=[24 * 24 * 3, 1000])  # which takes no room
    table = tf.constant(np.random.default_rng(0).standard_normal([24 * 24 * 3, 50]).astype(np.float32), name='table')
    x = tf.reshape(images, [-1, 24 * 24 * 3]) @ table + tf.reduce_mean(equal)
    return x @ tf.get_variable('weights', [50, num_classes])
'''


def test_constants_beyond_the_graph_limit_are_refused_with_the_largest_ones_line(own, settings, monkeypatch):
    monkeypatch.setattr(graphs, '_MOST_BYTES', 10 ** 6)
    given = dict(network=own(LARGE), max_steps=1)
    train(settings(**given))
    events, = os.scandir(os.path.join(settings().run.train_dir, CURVES))
    assert events.stat().st_size < 345600  # the size of the table
    refused = (r'constants of all its towers take 0.0010\d GB, .*; make .* tower_\d/network/table of 0.346 MB '
               r'\(line 5 ')
    with pytest.raises(UsageError, match=refused):
        train(settings(**given, train_dir=settings().run.train_dir + '3', num_towers=3))


def test_equal_draws_in_each_tower_are_not_mistaken_for_sums_over_images(linear):
    noise = 'tf.random.stateless_normal([int(images.shape[0]), 10], [tf.train.get_global_step(), 2])'
    assert rehearsed(linear(result=f'pixels @ weights + ({noise} if training else 0)')) == []


def test_random_integers_of_numpy_get_a_warning_and_are_equal_in_evaluation(own, graph):
    towers = own_towers(own('''
import numpy as np, tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.gather(images, np.random.permutation(3), axis=3)
    return tf.reduce_mean(x, [1, 2]) @ tf.get_variable('w', [3, num_classes])
'''))
    assert len(towers.check(4, [24], tf.float32)) == 1
    tf.train.create_global_step()
    add_tower(towers, tf.zeros([4, 24, 24, 3]))
    tf.get_variable_scope().reuse_variables()
    towers.evaluate(tf.zeros([4, 24, 24, 3]))
    indices = [tuple(tf.get_static_value(operation.inputs[1])) for operation in graph.get_operations()
               if operation.type == 'GatherV2' and operation.inputs[0].shape.rank == 4]
    assert len(indices) == 2 and len({*indices}) == 1


def test_gradients_do_not_depend_on_the_loss_scale(own, graph):
    towers = own_towers(own('''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    return tf.reduce_mean(images, [1, 2]) @ tf.get_variable('w', [3, num_classes])
'''))
    found = []
    for scale in (None, tf.constant(1024.0)):
        with tf.variable_scope(tf.get_variable_scope(), reuse=bool(found)), at_position(0, tf.zeros([], tf.int64)):
            computed, _ = towers.train((tf.ones([4, 24, 24, 3]), tf.zeros([4], tf.int32)), tf.float32, scale)
        found += [gradient for gradient, _ in computed.gradients]
    plain, scaled = value_of(found)
    np.testing.assert_allclose(plain, scaled, rtol=1e-6)


@pytest.mark.parametrize('line, factor', [
    ('pass', 1), ('tf.losses.add_loss(tf.losses.get_regularization_loss())', 1),
    ('tf.losses.add_loss(3 * tf.losses.get_regularization_loss())', 3)])
def test_a_penalty_counts_once_even_if_the_network_adds_it_to_its_losses(line, factor, own, graph):
    computed = add_tower(own_towers(own(f'''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    w = tf.get_variable('w', [3, num_classes], regularizer=tf.nn.l2_loss)
    {line}
    return tf.reduce_mean(images, [1, 2]) @ w
''')), tf.ones([4, 24, 24, 3]))
    w, = [each for each in tf.global_variables() if each.op.name == 'w']
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        penalty, value = session.run([computed.scalars['total_loss'] - computed.scalars['cross_entropy'], w])
    assert penalty == pytest.approx(factor * (value ** 2).sum() / 2, rel=1e-4)


def test_variables_of_a_models_own_optimizer_are_not_variables_of_the_run(own, graph):
    name = own('''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.reduce_mean(images, [1, 2])
    x = x - tf.get_variable('centre', [3], trainable=False, initializer=tf.zeros_initializer())
    logits = x @ tf.get_variable('w', [3, num_classes])
    step = tf.get_variable('step', [], tf.int64, trainable=False, initializer=tf.zeros_initializer())
    rate = tf.get_variable('rate', [], trainable=False)
    temperature = tf.get_variable('temperature', [], trainable=False, initializer=tf.ones_initializer())
    tf.train.AdamOptimizer(rate).minimize(tf.reduce_mean(logits), step)
    return logits if training else logits / temperature
''')
    assert rehearsed(name) == []
    add_tower(own_towers(name), tf.ones([4, 24, 24, 3]))
    assert {each.op.name for each in tf.global_variables()} == {'centre', 'w', 'step', 'temperature'}
    with tf.Graph().as_default():
        own_towers(name).evaluate(tf.ones([4, 24, 24, 3]))
        assert {each.op.name for each in tf.global_variables()} == {'global_step', 'centre', 'w', 'temperature'}


@pytest.mark.parametrize('draw', [
    'x + tf.random_normal([3])',
    'tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.nn.dropout(x, rate=0.5)), [0, x])[1]'])
def test_towers_draw_different_random_numbers_that_repeat_between_runs(draw, own):
    name = own(f'''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.tile(tf.reduce_mean(images, [1, 2]), [1, 100])
    x = {draw.replace('[3]', '[300]')}
    return x @ tf.get_variable('w', [300, num_classes])
''')
    found = []
    for _ in range(2):
        with graphs.seeded_graph(0):
            towers, losses, gradients = own_towers(name), [], []
            for k in range(2):
                with tf.name_scope(f'tower_{k}'), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
                    computed = add_tower(towers, tf.ones([4, 24, 24, 3]))
                losses.append(computed.scalars['total_loss'])
                gradients.append(computed.gradients[0][0])
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                found.append(session.run([losses, gradients]))
    for first, again in zip(*found):
        np.testing.assert_array_equal(first, again)
        assert not np.array_equal(first[0], first[1])


def test_a_users_network_is_neither_cut_nor_divided(own, call):
    name = own('''
import tensorflow.compat.v1 as tf
from cifar10.model.parts import next_part
def network(images, num_classes, training):
    x = next_part(tf.reduce_mean(images, [1, 2]) @ tf.get_variable('v', [3, 3]))
    return x @ tf.get_variable('w', [3, num_classes])
''')
    assert rehearsed(name) == []
    status, error = call(
        'multi_gpu_train.py', f'--network={name}', '--tower_device=cpu', '--num_gpus=2', '--gpus_per_tower=2')
    assert status == 2 and '--gpus_per_tower=2 only divides built-in networks' in error


def test_recomputation_in_a_gradient_repeats_the_draws_of_its_seed(own):
    name = own('''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    weights = tf.get_variable('w', [3, num_classes], initializer=tf.ones_initializer())
    logits = tf.recompute_grad(lambda x, w: tf.nn.dropout(x @ w, rate=0.5, noise_shape=[1, num_classes], seed=7))(
        tf.reduce_mean(images, [1, 2]), weights)
    tf.add_to_collection(tf.GraphKeys.ACTIVATIONS, logits)
    return logits
''')
    with graphs.seeded_graph(0):
        (gradient, _), = add_tower(own_towers(name), tf.ones([4, 24, 24, 3])).gradients
        logits, = tf.get_collection(tf.GraphKeys.ACTIVATIONS)
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                kept, used = session.run([logits, gradient])
                np.testing.assert_array_equal(kept[0] != 0, used[0] != 0)


def test_a_network_function_is_called_once_for_any_number_of_towers(own, graph, tmp_path):
    towers = own_towers(own('''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    with open(__file__ + '.calls', 'a') as stream:
        stream.write('called ')
    return tf.reduce_mean(images, [1, 2]) @ tf.get_variable('w', [3, num_classes])
'''))
    for k in range(4):
        with tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            add_tower(towers, tf.ones([4, 24, 24, 3]))
    assert (tmp_path / 'mine.py.calls').read_text() == 'called '
