"""Weights of other programs, as the start of a run: files of NumPy and of Keras, and which layer is which."""
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.training import trainer, weights
from examples import resnet18
from tests.helpers import ROOT, checkpoints, patient, tf, train

# A model of Keras, and the same as a network.
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
        bias = tf.get_variable('bias', [num_classes], **zeros)
        return x @ tf.get_variable('kernel', [64, num_classes]) + bias
'''
PAGE = (ROOT / 'docs' / 'weights.md').read_text()
# Two Keras write the same model, as the second one of their process, and the first one a model with branches.
WRITE = '''
import os, sys
import keras, numpy as np
import of_keras_2, of_keras_3
random = np.random.default_rng(0)
for number, module in ((3, of_keras_3), (2, of_keras_2)):
    module.build_model(10)
    model = module.build_model(10)
    if number == 3:
        values = [random.uniform(0.1, 1, each.shape) for each in model.weights]
        x = random.normal(size=[4, 24, 24, 3]).astype(np.float32)
    model.set_weights(values)
    model.compile('adam', 'mse')
    model.optimizer.build(model.trainable_variables)
    model.save_weights(f'keras_{number}.weights.h5')
    if number == 3:
        np.savez('logits.npz', x, np.asarray(model(x, training=False)))
        np.savez('values.npz', *model.get_weights())
model.save_weights('older.h5')
os.rename('older.h5', 'older.weights.h5')

start = keras.layers.Input([8])
left, right = (keras.layers.Dense(8, name=name)(start) for name in ('left', 'right'))
model = keras.Model(start, keras.layers.Dense(8, name='last')(left + right))
model.set_weights([np.full(each.shape, i) for i, each in enumerate(model.weights)])
model.save_weights('branches.weights.h5')
'''


@pytest.fixture(scope='module')
def keras_files(tmp_path_factory):
    """A folder with files of the Keras model on the page of networks, its logits, and the function in net.py."""
    folder = tmp_path_factory.mktemp('keras')
    (folder / 'of_keras_3.py').write_text(MODEL)
    (folder / 'of_keras_2.py').write_text(re.sub(r'\bkeras\b', 'tf_keras', MODEL))
    (folder / 'write.py').write_text(WRITE)
    (folder / 'net.py').write_text(NETWORK)
    subprocess.run([sys.executable, 'write.py'], cwd=folder, check=True, timeout=patient(120))
    return folder


def made(*names, **shapes):
    """Makes variables, 4 x 4 if no shape is given; returns them by their names."""
    return {name: tf.get_variable(name, shape) for name, shape in {**dict.fromkeys(names, [4, 4]), **shapes}.items()}


def saved(folder, arrays):
    """Writes arrays to a file; returns its path."""
    np.savez(folder / 'file.npz', **arrays)
    return str(folder / 'file.npz')


@pytest.mark.parametrize('name', ['keras_3', 'keras_2', 'older'])
def test_a_function_with_the_weights_of_a_keras_model_computes_what_the_model_does(name, keras_files, monkeypatch):
    monkeypatch.syspath_prepend(str(keras_files))
    from net import network
    with np.load(keras_files / 'logits.npz') as file:
        x, logits = file.values()
    found = network(tf.constant(x), 10, training=False)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    taken, lines = weights.named_as(variables, str(keras_files / f'{name}.weights.h5'))
    count = '_1' if name == 'older' else ''
    assert lines == [
        f'warm start conv1 from conv2d{"_2" if count else ""}, [3, 3, 3, 32]: kernel',
        f'warm start conv1 from batch_normalization{count}, [32]: beta, moving_mean, moving_variance',
        f'warm start conv2 from conv2d{"_3" if count else "_1"}, [3, 3, 32, 64]: kernel, bias',
        *([f'warm start dense from dense{count}, [64, 10]: kernel, bias'] if count else [])]
    with tf.Session() as session:
        for key, variable in variables.items():
            variable.load(taken.values[key], session)
        np.testing.assert_allclose(session.run(found), logits, rtol=1e-5)
    del sys.modules['net']


def test_a_run_starts_with_the_weights_of_a_keras_model(keras_files, settings, capsys):
    path = keras_files / 'keras_3.weights.h5'
    found = train(settings(network=f'{keras_files}/net.py:network', warm_start=str(path), learning_rate=0.0,
                           max_steps=1, freeze='moving_'))
    assert f'warm start 8 of 8 variables from {path}\nwarm start conv1 from conv2d, [' in capsys.readouterr().out
    with np.load(keras_files / 'values.npz') as file:
        of_keras = list(file.values())
    for name, value in zip(('conv1/kernel', 'conv1/beta', 'conv1/moving_mean', 'conv1/moving_variance', 'conv2/kernel',
                            'conv2/bias', 'dense/kernel', 'dense/bias'), of_keras, strict=True):
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_names_that_a_user_gives_in_keras_decide_where_the_order_does_not(keras_files):
    path = str(keras_files / 'branches.weights.h5')
    taken, lines = weights.named_as(made(**dict.fromkeys(('right/kernel', 'left/kernel', 'head/last/kernel'), [8, 8])),
                                    path)
    assert [taken.values[f'{name}/kernel'].max() for name in ('left', 'right', 'head/last')] == [0, 2, 4]
    assert lines == ['warm start head/last from last, [8, 8]: kernel', 'warm start not used: left/1, right/1, last/1']


# What a network has = what is taken for it from the file, in the order of the network; '-' stands for nothing. All are
# 4 x 4, or vectors of 4, unless another size is given.
MATCHED = {
    'by name': (['a/kernel = a/weights:0', 'a/bias = a/biases:0', 'b/kernel = b/w', 'b/bias = b/b'], [2, 3, 0, 1]),
    'below a name': (['a/kernel = net/a/w', 'b/kernel = net/b/w', '- = step', '- = net/a/w/Momentum'], [3, 1, 2, 0]),
    'normalisations': (['a/weights = a.weight', 'a/gamma = a__scale', 'n/gamma = n.weight', 'n/beta = n.bias',
                        'n/moving_mean = n.running_mean', 'n/moving_variance = n.running_var',
                        '- = n.num_batches_tracked'], [5, 4, 6, 3, 2, 1, 0]),
    'a kernel and a normalisation of one name': (
        ['a/weights = a.weight', 'a/gamma = a__scale', 'b/weights = b.weight', 'b/gamma = b__scale'], [2, 3, 0, 1]),
    'kinds in another order': (['a/gamma = x/scale', 'a/beta = x/beta', 'b/gamma 5 = y/scale 5'], [1, 0, 2]),
    'more in the file': (['a/kernel = a/w', 'b/kernel = b/w', '- = c/w'], [2, 1, 0]),
    'more in the network': (['a/kernel = a/w', 'b/kernel = b/w', 'c/kernel = -'], [1, 0]),
    'a whole name before one below': (['a/kernel = a/w', 'n/a/kernel = q/n/a/w'], [1, 0]),
    'by order, with the slots of an optimizer': (
        ['a/kernel = x/w', 'b/kernel = y/w', '- = x/w/Momentum', '- = y/w/Momentum'], None),
    'by order': (['a/kernel = x/w', 'a/bias = x/b', 'b/kernel = y/w', 'b/bias = y/b', 'c/kernel = z/w'], None),
    'a layer with a bias and one without': (['a/kernel = y/w', 'b/kernel = x/w', 'b/bias = x/b'], [1, 0, 2]),
    'the same names as well': (['a/kernel = x/w', 'b/kernel = b/w', 'c/kernel = z/w'], None),
    'numbers in sorted names': (['a/kernel = l_1/w', 'b/kernel = l_2/w', 'c/kernel = l_10/w'], [0, 2, 1]),
    'another last layer': (['a/kernel = x/w', 'b/kernel = y/w', 'last/kernel 3 = -', '- = z/w 5'], None),
    'the last one by name': (['a/kernel = x/w', 'last/kernel 3 = last/w 5'], None),
    'what an optimizer keeps': (['a/kernel = x/w', '- = x/w/Momentum', 'b/kernel = y/w'], None),
    'a name that ends as another': (['net/a/kernel = net/a/w', 'a/kernel = a/w'], [1, 0]),
    'a name that is there': (['a/kernel = a/w', 'net/a/kernel = -'], None),
    'each shape once': (['a/kernel 2 = z/w 2', 'b/kernel 3 = x/w 3', 'c/kernel = y/w'], [2, 1, 0]),
    'two kernels in a layer': (['a/depthwise = x/one', 'a/pointwise = x/two', 'a/bias = x/bias'], None)}


def shape_of(text):
    """Returns the name and the shape that 'a/kernel' or 'a/kernel 3' has here."""
    name, size = (text.split() + [4])[:2]
    last = re.split('[/.:]|__', name.removesuffix(':0'))[-1]
    is_vector = re.fullmatch('b|.*bias(es)?|gamma|beta|scale|running.*|moving.*', last) or name.startswith('n.')
    return name, () if last in ('step', 'num_batches_tracked') else (int(size),) * (1 if is_vector else 2)


def sides(rows):
    """Returns ([(name, shape) in the network], [(name, shape) in the file]), with None for nothing."""
    return zip(*([None if side == '-' else shape_of(side) for side in row.split(' = ')] for row in rows))


@pytest.mark.parametrize('rows, order', MATCHED.values(), ids=MATCHED)
def test_names_and_order_decide_which_layer_is_which(rows, order, tmp_path):
    here, there = sides(rows)
    file = [there[i] for i in order or range(len(there))]
    variables = made(**dict(each for each in here if each))
    arrays = {name: np.full(shape, 1 + there.index((name, shape)), np.float32) for name, shape in filter(None, file)}
    taken, _ = weights.named_as(variables, saved(tmp_path, arrays))
    for i, (ours, theirs) in enumerate(zip(here, there)):
        if ours and theirs:
            np.testing.assert_array_equal(taken.values[ours[0]], np.full(theirs[1], 1 + i))
        elif ours:
            assert ours[0] not in taken.values


@pytest.mark.parametrize('here, there, layers', [
    (['a/kernel', 'b/kernel'], ['x/w', 'y/w', 'z/w'], 'x, y, z there, a, b here'),
    (['a/kernel', 'b/kernel', 'c/kernel'], ['x/w', 'y/w'], 'x, y there, a, b, c here'),
    (['a/kernel', 'b/kernel 2', 'c/kernel'], ['x/w', 'y/w', 'z/w 2'], 'x, y, z there, a, b, c here'),
    (['a/kernel', 'b/kernel', 'c/kernel'], ['b/w', 'x/w', 'y/w'], 'b, x, y there, a, b, c here'),
    # The second one of a network has the name of the first one of the file, whose other names are not here.
    (['l/kernel 2', 'l_1/kernel', 'l_2/kernel'], ['l_1/w 2', 'l_2/w', 'l_3/w'], 'l_1, l_2, l_3 there, l, l_1, l_2')])
def test_what_cannot_be_decided_is_refused(here, there, layers, tmp_path):
    path = saved(tmp_path, {name: np.zeros(shape, np.float32) for name, shape in map(shape_of, there)})
    with pytest.raises(UsageError, match=f'^--warm_start={path}: neither names nor order tell .*: {layers}.*; give'):
        weights.named_as(made(**dict(map(shape_of, here))), path)


def keras_file(folder, **given):
    """Writes a file as Keras 3 does, of layers whose kernels hold 0, 1 and so on; given: what the layers are called."""
    import h5py
    path = str(folder / 'file.weights.h5')
    with h5py.File(path, 'w') as file:
        for i, (group, name) in enumerate(given.items()):
            file[f'{group}/vars/0'] = np.full([4, 4], i, np.float32)
            if name:  # which the first versions of Keras 3 did not write
                file[f'{group}/vars'].attrs['name'] = name
    return path


@pytest.mark.parametrize('given, names', [
    ({'layers/dense': 'dense_7', 'layers/dense_1': 'head'}, ['dense', 'head']),
    ({'layers/dense': 'head', 'layers/my_block/layers/dense': 'dense_9'}, ['head', 'my_block/dense']),
    ({'layers/my_block/layers/dense': 'dense_8', 'layers/my_block_1/layers/dense': 'dense_9'},
     ['my_block/dense', 'my_block_1/dense']),
    ({'layers/dense': '', 'layers/dense_1': ''}, ['dense', 'dense_1']),
    ({'layers/dense': 'dense_1', 'layers/dense_1': 'dense_2', 'layers/other': 'dense'}, ['dense', 'dense_1', 'other']),
    ({'layer1': 'dense_3', 'layer2': 'dense_4'}, ['layer1', 'layer2']),
    ({'blocks/dense': 'dense_3', 'blocks/dense_1': 'first'}, ['blocks/dense', 'blocks/dense_1'])])
def test_the_names_of_layers_in_keras_are_those_that_do_not_count_other_models(given, names, tmp_path):
    taken, lines = weights.named_as(made(*(f'{name}/kernel' for name in names)), keras_file(tmp_path, **given))
    assert [taken.values[f'{name}/kernel'].max() for name in names] == [*range(len(names))] and not lines


@pytest.mark.parametrize('named, other', [('dense', 'noisy_dense'), ('noisy_dense', 'dense')])
def test_what_is_named_in_a_keras_file_leaves_the_order_of_another_class(named, other, tmp_path):
    path = keras_file(tmp_path, **{f'layers/{named}': 'head', f'layers/{other}': other})
    taken, lines = weights.named_as(made('b/kernel', 'head/kernel'), path)
    assert [taken.values[f'{name}/kernel'].max() for name in ('head', 'b')] == [0, 1]
    assert lines == [f'warm start b from {other}, [4, 4]: kernel']


def test_numbers_in_the_names_of_a_keras_file_are_in_the_order_of_their_values(tmp_path):
    layers = ['dense', 'dense_1', 'dense_2', 'dense_10']
    taken, _ = weights.named_as(made(*(f'{name}/kernel' for name in 'abcd')),
                                keras_file(tmp_path, **{f'layers/{name}': name for name in layers}))
    assert [taken.values[f'{name}/kernel'].max() for name in 'abcd'] == [0, 1, 2, 3]


def test_a_keras_file_has_no_order_of_layers_of_several_classes(tmp_path):
    path = keras_file(tmp_path, **{f'layers/{name}': name for name in ('dense', 'dense_1', 'noisy_dense')})
    with pytest.raises(UsageError, match='which layer is which: dense, dense_1, noisy_dense there, a, b, c here'):
        weights.named_as(made('a/kernel', 'b/kernel', 'c/kernel'), path)


def of_pytorch(scope):
    """Returns the name that torchvision's ResNet-18 has for a layer of the example."""
    stage, block, layer = (re.findall(r'stage(\d)/block(\d)/(\w+)', scope) or [(None, None, scope)])[0]
    below = f'layer{stage}.{int(block) - 1}.' if stage else ''
    return below + dict(stem='conv1', shortcut='downsample.0', logits='fc').get(layer, layer)


def test_the_lines_for_pytorch_bring_its_resnet_18_into_the_example(tmp_path, monkeypatch):
    # PyTorch is not installed; its part here is that of a dict.
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
    code, = [code for code in re.findall(r'```python\n(.*?)```', PAGE, re.S) if 'import torch' in code]
    assert len(code.split('\n\n')[0].splitlines()) + len(code.split('\n\n')[1].splitlines()) <= 8
    monkeypatch.setitem(sys.modules, 'torch', torch)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    found, _ = weights.named_as(variables, 'resnet18.npz')
    expected = {name: value for _, value, name in state.values() if name}
    assert expected.keys() == variables.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found.values[name], value, err_msg=name)


def test_what_is_no_file_of_weights_is_refused_in_a_line(settings, tmp_path):
    class Harmful:
        def __reduce__(self):
            return open, (str(tmp_path / 'executed'), 'w')
    (tmp_path / 'text.npz').write_text('of something else')
    (tmp_path / 'text.weights.h5').write_text('of something else')
    np.savez(tmp_path / 'pickled.npz', a=np.array([Harmful()], object))
    np.savez(tmp_path / 'other.npz', a=np.zeros([9, 9]))
    with open(keras_file(tmp_path, dense='dense'), 'rb') as whole:
        (tmp_path / 'half.weights.h5').write_bytes(whole.read(1000))
    (tmp_path / 'exported').mkdir()
    (tmp_path / 'exported' / 'saved_model.pb').touch()
    for name, part in (
            ('none.npz', "is not a file; give a file that numpy.savez or Keras' save_weights has written"),
            ('none.weights.h5', 'is not a file; give'), ('text.npz', r'cannot be read \(not an .npz file\); give a'),
            ('text.weights.h5', 'cannot be read .*signature'), ('pickled.npz', 'cannot be read .*allow_pickle=False'),
            ('half.weights.h5', 'cannot be read .*truncated'), ('other.npz', 'has no variable that fits this network'),
            *((name, f'the format {suffix} is not read; convert it to FILE.npz with the lines in docs/weights.md')
              for name, suffix in (('a.pth', '.pth'), ('a.onnx', '.onnx'), ('a.safetensors', '.safetensors'),
                                   ('exported', 'SavedModel'))),
            *((name, rf"the format {suffix} is not read; load .* model.save_weights\('x.weights.h5'\), as in docs/weig")
              for name, suffix in (('model.h5', '.h5'), ('a.KERAS', '.keras'), ('a.hdf5', '.hdf5')))):
        with pytest.raises(UsageError, match=f'^--warm_start={tmp_path}/{name}:? {part}') as refused:
            trainer.train(settings(warm_start=str(tmp_path / name), network='linear'))
        assert '\n' not in str(refused.value) and not checkpoints(settings().run.train_dir)
    assert not (tmp_path / 'executed').exists()


def test_a_folder_whose_name_ends_like_a_format_may_be_a_train_dir(settings, tmp_path, capsys):
    train(settings(network='linear', max_steps=1, train_dir=str(tmp_path / 'a.bin')))
    train(settings(network='linear', max_steps=1, warm_start=str(tmp_path / 'a.bin')))
    assert 'warm start 2 of 2 variables' in capsys.readouterr().out
