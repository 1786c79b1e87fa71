"""The code of docs/networks.md: its networks train, its loss is one, and the function for Keras is the Keras model."""
import re
import subprocess
import sys

import numpy as np
import pytest

from cifar10.training import trainer
from tests.helpers import ROOT, last_variables, patient, rehearsed, tf

PROGRAMS = re.findall(r'```python\n(.*?)```', (ROOT / 'docs' / 'networks.md').read_text(), re.S)
MODEL, = [code for code in PROGRAMS if 'def build_model' in code]
FIRST, NETWORK = [code for code in PROGRAMS if 'def network' in code]
FOCAL, = [code for code in PROGRAMS if 'def focal' in code]


@pytest.fixture
def page(tmp_path):
    """A folder with the Python programs of docs/networks.md that are complete."""
    for name, code in (('keras_model', MODEL), ('first', FIRST), ('my_network', NETWORK), ('focal', FOCAL)):
        (tmp_path / f'{name}.py').write_text(code)
    return tmp_path


@pytest.mark.parametrize('name', ['first', 'my_network'])
@pytest.mark.parametrize('dtype', [tf.float32, tf.bfloat16])
def test_a_network_of_the_page_keeps_the_rules(page, name, dtype):
    assert rehearsed(f'{page}/{name}.py:network', dtype=dtype) == []


def test_the_network_and_the_loss_of_the_page_are_trained(page, settings, capsys):
    config = settings(network=f'{page}/my_network.py:network', loss=f'{page}/focal.py:focal', num_gpus=2)
    trainer.train(config)
    assert 'warning: --network' not in capsys.readouterr().out
    names = {f'{scope}/{name}' for scope, names in (
        ('conv1', ('kernel', 'beta', 'moving_mean', 'moving_variance')), ('conv2', ('kernel', 'bias')),
        ('dense', ('kernel', 'bias'))) for name in names}
    assert names <= last_variables(config.run.train_dir).keys()


def test_the_numbers_of_the_two_models_are_the_same():
    for numbers in (re.findall(r'# (\d+)$', code, re.M) for code in (MODEL, NETWORK)):
        assert sorted(map(int, numbers)) == list(range(1, 11))


COMPARE = '''
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from keras_model import build_model
model = build_model(10)
random = np.random.default_rng(0)
model.set_weights([random.uniform(0.1, 1, each.shape) for each in model.weights])
x = random.normal(size=[4, 24, 24, 3]).astype(np.float32)
np.savez(sys.argv[1] + '/keras', x, np.asarray(model(x, training=False)), float(sum(model.losses)),
         *model.get_weights())
'''


@pytest.mark.stress
def test_the_network_of_the_page_is_the_keras_model(page, monkeypatch):
    subprocess.run([sys.executable, '-c', COMPARE, str(page)], check=True, timeout=patient(120))
    with np.load(page / 'keras.npz') as saved:
        x, logits, loss, *values = saved.values()
    monkeypatch.syspath_prepend(str(page))
    from my_network import network
    found = network(tf.constant(x), 10, training=False)
    found_loss, = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    with tf.Session() as session:
        for variable, value in zip(tf.global_variables(), values, strict=True):
            variable.load(value, session)
        np.testing.assert_allclose(session.run(found), logits, rtol=1e-4)
        np.testing.assert_allclose(session.run(found_loss), loss, rtol=1e-5)
    del sys.modules['my_network']
