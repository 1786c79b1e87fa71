"""The picture of the graph in TensorBoard, in every mode."""
import pytest

from cifar10.data import records
from cifar10.recipe import Recipe
from cifar10.registry import UPDATE_MODES
from cifar10.run import picture
from cifar10.settings.training import completed
from cifar10.trained.evaluator import Evaluator
from tests.helpers import build_training, mostly_stress, tf, update_mode


def boxes(shown):
    """Returns the names of the boxes; asserts that every edge begins at an operation that is shown."""
    names = {node.name for node in shown.node}
    for node in shown.node:
        for source in node.input:
            assert source.removeprefix('^').split(':')[0] in names, (node.name, source)
    assert not shown.library.function and len(names) == len(shown.node)
    return {name.split('/')[0] for name in names}


@pytest.mark.classic
@pytest.mark.parametrize('mode', mostly_stress(UPDATE_MODES, 'parameter_server', 'replicated'))
def test_a_training_graph_is_a_few_boxes(settings, data_dir, mode, graph):
    built_mode = update_mode(mode, ['/cpu:0', '/cpu:1'])
    built = build_training(settings(num_gpus=2, variable_update=mode, summary_steps=1),
                           records.prepare('shapes', data_dir), built_mode.devices, built_mode)
    whole = graph.as_graph_def()
    shown = picture.of_graph(whole, [built.train_step.name, *[tensor.name for tensor in built.async_train_ops]])
    assert boxes(shown) == {'input', 'tower_0', 'tower_1', 'update', 'variables'}
    assert len(shown.node) < 0.7 * len(whole.node)
    edges = {(source.removeprefix('^').split('/')[0], node.name.split('/')[0]) for node in shown.node
             for source in node.input}
    for edge in (('input', 'tower_0'), ('input', 'tower_1'), ('tower_0', 'update'), ('tower_1', 'update'),
                 ('variables', 'tower_0')):
        assert edge in edges, edge


def test_an_evaluation_graph_too(data_dir, graph):
    data = records.prepare('shapes', data_dir, records.TEST)
    evaluator = Evaluator(data, Recipe(completed({}).recipe, 10), ['/cpu:0'], 100)
    shown = picture.of_graph(graph.as_graph_def(), [tensor.name for tensor in evaluator.fetched])
    assert boxes(shown) == {'input', 'tower_0', 'variables'}
    assert tf.global_variables()
