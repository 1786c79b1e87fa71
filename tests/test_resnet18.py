"""examples/resnet18.py: a ResNet-18 in TensorFlow 1's style trains in every mode, on images of any size."""
import importlib.util

import pytest

from tests.helpers import ROOT, rehearsed, tf

PATH = ROOT / 'examples' / 'resnet18.py'


@pytest.fixture(scope='module')
def resnet18():
    spec = importlib.util.spec_from_file_location('resnet18', PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.stress
@pytest.mark.parametrize('size, stem, last', [(32, 3, 4), (64, 3, 8), (224, 7, 7)])
def test_it_follows_the_rules_at_every_size(size, stem, last, resnet18):
    assert rehearsed(f'{PATH}:narrow', batch_size=2, sizes=[size]) == []
    resnet18.narrow(tf.placeholder(tf.float32, [None, size, size, 3]), 10, False)
    shapes = {variable.op.name: variable.shape.as_list() for variable in tf.global_variables()}
    assert shapes['stem/kernel'] == [stem, stem, 3, 8]
    mean, = [operation for operation in tf.get_default_graph().get_operations() if operation.type == 'Mean']
    assert mean.inputs[0].shape.as_list() == [None, last, last, 64]


def test_it_has_the_papers_number_of_parameters(resnet18):
    resnet18.network(tf.placeholder(tf.float32, [None, 224, 224, 3]), 1000, False)
    assert sum(variable.shape.num_elements() for variable in tf.trainable_variables()) == 11_689_512
