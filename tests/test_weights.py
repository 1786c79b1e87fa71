"""Weights of other programs as the start of a run: NumPy files, and the match of arrays with variables."""
import re
import shutil
import subprocess
import sys
import types

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.training import trainer, weights
from examples import resnet18
from tests.helpers import ROOT, checkpoints, patient, tf, train

# A Keras model, and the same model as a network.
MODEL = '''
import keras
from keras import layers


def build_model(num_classes):
    return keras.Sequential([
        layers.Input([24, 24, 3]),
        layers.Conv2D(32, 3, padding='same', use_bias=False,
                      kernel_regularizer=keras.regularizers.L2(1e-4)),
        layers.BatchNormalization(momentum=0.9, epsilon=1e-5, scale=False),
        layers.ReLU(),
        layers.MaxPooling2D(2),
        layers.Conv2D(64, 3, padding='same', activation='relu'),
        layers.GlobalAveragePooling2D(),
        layers.Dropout(0.3),
        layers.Dense(num_classes)])
'''
NETWORK = '''
import tensorflow.compat.v1 as tf

from cifar10.model import batch_normalisation, dropout


def network(images, num_classes, training):
    zeros = dict(initializer=tf.zeros_initializer())
    with tf.variable_scope('conv1'):
        kernel = tf.get_variable(
            'kernel', [3, 3, 3, 32], regularizer=lambda w: 2e-4 * tf.nn.l2_loss(w))
        x = tf.nn.conv2d(images, kernel, strides=1, padding='SAME')
        x = batch_normalisation(x, training, momentum=0.9, epsilon=1e-5, scale=False)
    x = tf.nn.relu(x)
    x = tf.nn.max_pool2d(x, ksize=2, strides=2, padding='VALID')
    with tf.variable_scope('conv2'):
        x = tf.nn.conv2d(x, tf.get_variable('kernel', [3, 3, 32, 64]), strides=1, padding='SAME')
        x = tf.nn.relu(x + tf.get_variable('bias', [64], **zeros))
    x = tf.reduce_mean(x, [1, 2])
    x = dropout(x, 0.3, training)
    with tf.variable_scope('dense'):
        x = x @ tf.get_variable('kernel', [64, num_classes])
        return x + tf.get_variable('bias', [num_classes], **zeros)
'''
PAGE = (ROOT / 'docs' / 'weights.md').read_text()
FOR_KERAS, FOR_PYTORCH = re.findall(r'```python\n(.*?)```', PAGE, re.S)
# Keras writes its weights with the lines of the page.
WRITE = f'''
import numpy as np
random = np.random.default_rng(0)
model = build_model(10)
model.set_weights([random.uniform(0.1, 1, each.shape) for each in model.weights])
{FOR_KERAS}
x = random.normal(size=[4, 24, 24, 3]).astype(np.float32)
np.savez('logits.npz', x, np.asarray(model(x, training=False)))
'''


def made(*names, **shapes):
    """Makes variables, 4 x 4 by default; returns them by name."""
    return {name: tf.get_variable(name, shape) for name, shape in {**dict.fromkeys(names, [4, 4]), **shapes}.items()}


def saved(folder, arrays):
    """Writes arrays to a file; returns its path."""
    np.savez(folder / 'file.npz', **arrays)
    return str(folder / 'file.npz')


@pytest.mark.stress
def test_a_network_with_a_keras_models_weights_computes_the_same(tmp_path):
    (tmp_path / 'write.py').write_text(MODEL + WRITE)
    subprocess.run([sys.executable, 'write.py'], cwd=tmp_path, check=True, timeout=patient(120))
    with np.load(tmp_path / 'logits.npz') as file:
        x, logits = file.values()
    names = {}
    exec(NETWORK, names)
    found = names['network'](tf.constant(x), 10, training=False)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    taken, lines = weights.named_as(variables, str(tmp_path / 'flowers.npz'))
    assert len(lines) == 1 and 'in order: conv1/kernel from ' in lines[0].text
    with tf.Session() as session:
        for key, variable in variables.items():
            variable.load(taken.values[key], session)
        np.testing.assert_allclose(session.run(found), logits, rtol=1e-5)


# A network's variable = the array for it, in the network's order; '-' means none. All are 4 x 4 unless a shape is
# given.
MATCHED = {
    'by name': (['a/kernel = a/kernel:0', 'a/bias 4 = a.bias 4', 'b/kernel = b/kernel'], [2, 0, 1]),
    'more in the file': (['a/kernel = a/kernel', '- = c/kernel', '- = step ()'], [2, 0, 1]),
    'more in the network': (['a/kernel = a/kernel', 'c/kernel = -'], None),
    'in order': (['a/kernel = x/w', 'a/bias 4 = x/b 4', 'n () = -', 'b/kernel = y/w', '- = step ()'], None),
    'in order, with a name that agrees': (['a/kernel = x/w', 'b/kernel = b/kernel', 'c/kernel = z/w'], None),
    'a name against the order': (['a/kernel = -', 'b/kernel = b/kernel', '- = x/w'], [1, 2, 0]),
    'numbers in sorted names': (['a/kernel = arr_1', 'b/kernel 2 = arr_2 2', 'c/kernel = arr_10'], [0, 2, 1])}
REFUSED = {
    'more there': (['a/kernel', 'b/kernel'], ['x/w', 'y/w', 'z/w']),
    'more here': (['a/kernel', 'b/kernel', 'c/kernel'], ['x/w', 'y/w']),
    'another order': (['a/kernel', 'b/kernel 2'], ['x/w 2', 'y/w']),
    'another last layer': (['a/kernel', 'last/kernel 3'], ['x/w', 'y/w 5']),
    'no array': (['a/kernel'], ['step ()'])}


def shape_of(text):
    """Returns the (name, shape) that 'a/kernel', 'a/bias 4' or 'step ()' means."""
    name, _, shape = text.partition(' ')
    return name, {'': (4, 4), '()': ()}[shape] if not shape.isdigit() else (int(shape),)


@pytest.mark.parametrize('rows, order', MATCHED.values(), ids=MATCHED)
def test_arrays_are_matched_with_variables_by_name_or_by_order(rows, order, tmp_path):
    here, there = zip(*([None if side == '-' else shape_of(side) for side in row.split(' = ')] for row in rows))
    file = [there[i] for i in order or range(len(there))]
    arrays = {name: np.full(shape, 1 + there.index((name, shape)), np.float32) for name, shape in filter(None, file)}
    taken, _ = weights.named_as(made(**dict(filter(None, here))), saved(tmp_path, arrays))
    expected = {ours[0]: arrays[theirs[0]] for ours, theirs in zip(here, there) if ours and theirs}
    assert taken.values.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(taken.values[name], value, err_msg=name)


@pytest.mark.parametrize('here, there', REFUSED.values(), ids=REFUSED)
def test_ambiguous_arrays_are_refused(here, there, tmp_path):
    path = saved(tmp_path, {name: np.zeros(shape, np.float32) for name, shape in map(shape_of, there)})
    with pytest.raises(UsageError, match=f'^--warm_start={path}: its arrays .* neither by name nor by order'):
        weights.named_as(made(**dict(map(shape_of, here))), path)


def of_pytorch(scope):
    """Returns the name of a layer of the example in torchvision's ResNet-18."""
    stage, block, layer = (re.findall(r'stage(\d)/block(\d)/(\w+)', scope) or [(None, None, scope)])[0]
    below = f'layer{stage}.{int(block) - 1}.' if stage else ''
    return below + dict(stem='conv1', shortcut='downsample.0', logits='fc').get(layer, layer)


def test_the_lines_for_pytorch_bring_its_resnet_18_into_the_example(tmp_path, monkeypatch):
    # PyTorch is not installed; a dict stands in for its state.
    resnet18.narrow(tf.zeros([1, 24, 24, 3]), 10, True)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    random, state = np.random.default_rng(0), {}
    for name, variable in variables.items():
        scope, kind = name.rsplit('/', 1)
        other = of_pytorch(scope)
        if kind not in ('kernel', 'bias'):
            other = re.sub(r'conv(\d)$', r'bn\1', other).replace('downsample.0', 'downsample.1')
        kind = dict(kernel='weight', gamma='weight', beta='bias', moving_mean='running_mean',
                    moving_variance='running_var').get(kind, kind)
        value = random.uniform(0.5, 1, variable.shape).astype(np.float32)
        state[f'{other}.{kind}'] = value.transpose({4: (3, 2, 0, 1)}.get(value.ndim)), value, name
        state[f'{other}.num_batches_tracked'] = np.int64(3), None, None
    torch = types.SimpleNamespace(load=lambda *_, **__: {
        name: types.SimpleNamespace(numpy=lambda value=value: value) for name, (value, _, _) in state.items()})
    monkeypatch.setitem(sys.modules, 'torch', torch)
    monkeypatch.chdir(tmp_path)
    exec(FOR_PYTORCH, {})
    found, _ = weights.named_as(variables, 'resnet18.npz')
    expected = {name: value for _, value, name in state.values() if name}
    assert expected.keys() == variables.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found.values[name], value, err_msg=name)


def test_an_invalid_file_of_weights_is_refused_in_one_line(settings, tmp_path):
    class Harmful:
        def __reduce__(self):
            return open, (str(tmp_path / 'executed'), 'w')
    (tmp_path / 'text.npz').write_text('of something else')
    np.savez(tmp_path / 'pickled.npz', a=np.array([Harmful()], object))
    np.savez(tmp_path / 'other.npz', a=np.zeros([9, 9]))
    (tmp_path / 'exported').mkdir()
    (tmp_path / 'exported' / 'saved_model.pb').touch()
    for name, part in (
            ('none.npz', 'is not a file; give a file that numpy.savez has written'),
            ('text.npz', r'cannot be read \(not an .npz file\); give a'),
            ('pickled.npz', 'cannot be read .*allow_pickle=False'), ('other.npz', 'its arrays .* neither by name'),
            *((name, f'the format {suffix} is not supported; convert it to FILE.npz with the lines in docs/weights.md')
              for name, suffix in (('a.pth', '.pth'), ('a.onnx', '.onnx'), ('exported', 'SavedModel'),
                                   ('a.weights.h5', '.h5'), ('a.KERAS', '.keras')))):
        with pytest.raises(UsageError, match=f'^--warm_start={tmp_path}/{name}:? {part}') as refused:
            trainer.train(settings(warm_start=str(tmp_path / name), network='linear'))
        assert '\n' not in str(refused.value) and not checkpoints(settings().run.train_dir)
    assert not (tmp_path / 'executed').exists()


def test_a_train_dir_may_have_a_name_that_ends_like_a_format(first_step, settings, tmp_path, capsys):
    shutil.copytree(first_step('linear'), tmp_path / 'a.bin')
    train(settings(network='linear', max_steps=1, warm_start=str(tmp_path / 'a.bin')))
    assert 'warm start 2 of 2 variables' in capsys.readouterr().out
