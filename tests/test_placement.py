"""Devices of operations, read from the GraphDef of a training graph for GPUs; this needs no GPU."""
import re

import pytest
import tensorflow.compat.v1 as tf

from cifar10.data import datasets, pipeline
from cifar10.parallel import devices
from cifar10.parallel.parameter_server import ParameterServer
from cifar10.settings.training import train_settings
from tests.helpers import build_training

TOWERS = 3


@pytest.fixture(scope='module')
def nodes(data_dir):
    """The nodes of a training graph for three GPUs, by name."""
    config = train_settings(num_gpus=TOWERS, summary_steps=1, batch_size=8)
    gpus = devices.Devices(tuple((f'/gpu:{k}',) for k in range(TOWERS)), on_gpus=True)
    with tf.Graph().as_default() as graph:
        build_training(config, datasets.prepare('shapes', data_dir), gpus, ParameterServer(gpus))
    return {node.name: node for node in graph.as_graph_def().node}


def test_a_towers_forward_and_backward_pass_are_on_its_gpu(nodes):
    seen = set()
    for name, node in nodes.items():
        tower = re.match(r'tower_(\d+)/', name)
        if tower and node.op != 'ReadVariableOp':
            assert node.device == f'/device:GPU:{tower.group(1)}', name
            seen.add((int(tower.group(1)), node.op))
    for k in range(TOWERS):
        assert {(k, op) for op in ('Conv2D', 'Conv2DBackpropFilter', 'Conv2DBackpropInput', 'Rsqrt', 'RealDiv',
                                   'MaxPoolGrad', 'MatMul', 'SparseSoftmaxCrossEntropyWithLogits')} <= seen


def test_a_tower_reads_each_variable_once(nodes):
    # Each read of a variable on the CPU is a copy to the GPU: 3.5 MB for local3's weights.
    reads = re.compile(r'tower_(\d)/(?!gradients/)')
    count = {}
    for name, node in nodes.items():
        tower = reads.match(name)
        if tower and node.op == 'ReadVariableOp':
            key = tower.group(1), node.input[0]
            count[key] = count.get(key, 0) + 1
    assert len(count) == 10 * TOWERS and set(count.values()) == {1}, count


def test_shared_operations_are_on_the_cpu(nodes):
    pinned = {'VarHandleOp', 'AssignAddVariableOp', 'ResourceApplyGradientDescent', 'MapDataset',
              'ScalarSummary', 'HistogramSummary', 'MergeSummary'}
    seen = set()
    for name, node in nodes.items():
        if node.op in pinned:
            assert node.device == '/device:CPU:0', name
            seen.add(node.op)
    assert seen == pinned
    scopes = re.compile('(update(?!/pack)|after_update|summaries|input|learning_rate)/')
    # Batches move from the CPU to a GPU before the step.
    ahead = {'WrapDatasetVariant', 'GeneratorDataset', 'PrefetchDataset', 'OptionsDataset', 'IteratorV2',
             'IteratorToStringHandle', 'MakeIterator', 'IteratorGetNext', 'Const'}
    shared = [node for name, node in nodes.items()
              if scopes.match(name) and not (name.startswith('input/') and node.op in ahead)]
    assert len(shared) > 100
    for node in shared:
        assert node.device == '/device:CPU:0' or node.op == 'ReadVariableOp' or '/Initializer/' in node.name, node.name


def test_every_tower_is_one_box_in_the_graph(nodes):
    # TensorBoard draws a box for each first part of a name; loose operations clutter the picture.
    top = {name.split('/')[0] for name in nodes}
    assert top == {f'tower_{k}' for k in range(TOWERS)} | {
        'input', 'learning_rate', 'turns', 'update', 'after_update', 'summaries', 'initialise', 'global_step',
        'examples_seen', 'conv1', 'conv2', 'local3', 'local4', 'softmax_linear'}


def test_batches_are_made_on_all_cores_and_wait_on_their_gpu(data_dir, monkeypatch):
    monkeypatch.setattr(pipeline, '_CORES', 7)
    gpus = devices.Devices(tuple((f'/gpu:{k}',) for k in range(TOWERS)), on_gpus=True)
    build_training(train_settings(num_gpus=TOWERS, network='linear', summary_steps=0, batch_size=8),
                   datasets.prepare('shapes', data_dir), gpus, ParameterServer(gpus))
    starts = [op for op in tf.get_default_graph().get_operations() if op.type == 'MakeIterator']
    assert [op.device for op in starts] == [f'/device:GPU:{k}' for k in range(TOWERS)]
    for start in starts:
        behind, at_a_time = start.inputs[0].op, []
        waiting = []  # the devices on which batches wait, last first
        while sources := [each.op for each in behind.inputs if each.dtype == tf.variant]:
            if behind.type == 'PrefetchDataset':
                waiting.append(behind.device)
            if behind.type == 'ParallelMapDatasetV2':
                at_a_time.append(tf.get_static_value(behind.inputs[-1]))
            behind, = sources
        assert waiting == [start.device, '/device:CPU:0'] and at_a_time == [7 // TOWERS]
