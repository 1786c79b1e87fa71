"""The code of docs/keras-to-tower.md: it trains, it prints what the page shows, and it is the Keras model."""
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import ROOT, patient, tf


@pytest.fixture
def page(tmp_path):
    """A folder with the Python programs of docs/keras-to-tower.md that are complete."""
    text = (ROOT / 'docs' / 'keras-to-tower.md').read_text()
    keras_model, network, _, step = re.findall(r'```python\n(.*?)```', text, re.S)
    for name, code in (('keras_model', keras_model), ('my_network', network), ('step', step)):
        (tmp_path / f'{name}.py').write_text(code)
    return tmp_path


def test_the_step_of_the_page_prints_its_losses(page, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(page))
    exec(compile((page / 'step.py').read_text(), 'step.py', 'exec'), {})
    del sys.modules['my_network']
    shown = re.findall(r'loss = ([\d.]+)', (ROOT / 'docs' / 'keras-to-tower.md').read_text())
    printed = re.findall(r'loss = ([\d.]+)', capsys.readouterr().out)
    np.testing.assert_allclose(np.array(printed, float), np.array(shown, float), atol=0.01)


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
    found_loss, = tf.get_collection(tf.GraphKeys.LOSSES)
    with tf.Session() as session:
        for variable, value in zip(tf.global_variables(), values, strict=True):
            variable.load(value, session)
        np.testing.assert_allclose(session.run(found), logits, rtol=1e-4)
        np.testing.assert_allclose(session.run(found_loss), loss, rtol=1e-5)
    del sys.modules['my_network']
