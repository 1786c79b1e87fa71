"""The code of docs/networks.md, and its statements about Keras: the networks train, and the loss works."""
import re

import pytest

from cifar10.training import trainer
from tests.helpers import ROOT, add_tower, last_variables, own_towers, rehearsed, tf

NETWORK, FOCAL = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'networks.md').read_text(), re.S)
TENSORFLOW = 'import tensorflow.compat.v1 as tf\n'


@pytest.fixture
def page(tmp_path):
    """A folder with the Python programs of docs/networks.md."""
    (tmp_path / 'net.py').write_text(NETWORK)
    (tmp_path / 'focal.py').write_text(TENSORFLOW + FOCAL)
    return tmp_path


@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
def test_the_network_of_the_page_follows_the_rules(page, dtype):
    assert rehearsed(f'{page}/net.py:network', dtype=dtype) == []


def test_the_network_and_the_loss_of_the_page_are_trained(page, settings, capsys):
    config = settings(network=f'{page}/net.py:network', loss=f'{page}/focal.py:focal', num_gpus=2)
    trainer.train(config)
    assert 'warning: ' not in capsys.readouterr().out
    assert {'conv/kernel', 'gamma', 'beta', 'moving_mean', 'moving_variance', 'dense/kernel'} <= last_variables(
        config.run.train_dir).keys()


KERAS = TENSORFLOW + '''
layers = tf.keras.layers
def build_model(num_classes):
    inputs = layers.Input([24, 24, 3])
    x = layers.Conv2D(4, 3, kernel_regularizer=tf.keras.regularizers.L2(1e-4))(inputs)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
    return tf.keras.Model(inputs, layers.Dense(num_classes)(x))
def net(images, num_classes, training):
    model = build_model(num_classes)
    logits = model(images, training=training)
    for update in model.updates:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    for loss in model.losses:
        tf.add_to_collection(tf.GraphKeys.LOSSES, loss)
    return logits, {model.input: images}
'''


def test_a_keras_model_with_an_input_layer_works_as_a_network(own):
    name = own(KERAS, 'net')
    assert rehearsed(name) == []
    computed = add_tower(own_towers(name), tf.zeros([4, 24, 24, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(computed.scalars['total_loss'] - computed.scalars['cross_entropy']) > 0
    assert {each.variable.op.name for each in computed.statistics} == {
        'batch_normalization/moving_mean', 'batch_normalization/moving_variance'}
