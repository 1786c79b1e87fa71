"""Sums do not depend on the order in which their terms become ready, which varies between runs."""
import functools
import re

import pytest

from cifar10.training import trainer
from cifar10.training.run import Run
from tests.helpers import ROOT, mostly_stress, tf

MODES = ['parameter_server', 'replicated', 'mirrored', 'local']
NETWORKS, EXAMPLES = f'{ROOT}/tests/networks.py', f'{ROOT}/examples'
# TensorFlow rewrites sums if it expects a 256 MB device to run out of memory; CPU devices report this size.
LARGE = {
    'classic': dict(network='classic', batch_size=512),
    'fast': dict(preset='fast', batch_size=128, max_steps=None, epochs=0.128),
    'residual': dict(network=f'{EXAMPLES}/residual_network.py:residual', batch_size=128),
    'resnet18': dict(network=f'{EXAMPLES}/resnet18.py:narrow', batch_size=128),
    'attention': dict(network=f'{NETWORKS}:attention', batch_size=64, num_gpus=2)}
ANY_ORDER = re.compile(r'TemporaryVariable|DestroyTemporaryVariable|Accumulat\w*')  # types of operations


@pytest.mark.parametrize('network, mode', mostly_stress(
    [*((network, 'parameter_server') for network in LARGE), *(('attention', mode) for mode in MODES[1:])],
    ('attention', 'parameter_server')))
def test_no_operation_of_a_step_depends_on_the_order_of_its_inputs(network, mode, settings, monkeypatch):
    ran = []  # the types of each step's operations, as TensorFlow ran them

    def run_step(taken, *arguments, **options):
        metadata = tf.RunMetadata()
        call = taken.session._do_call

        def traced(function, *arguments):
            is_step = isinstance(function, functools.partial)  # a step comes from `make_callable`
            return call(function, *(tf.RunOptions(output_partition_graphs=True), metadata) if is_step else arguments)
        with monkeypatch.context() as patch:
            patch.setattr(taken.session, '_do_call', traced)
            patch.setattr(taken.session, 'make_callable',
                          functools.partial(taken.session.make_callable, accept_options=True))
            results = real(taken, *arguments, **options)
        graphs = metadata.partition_graphs
        ran.append({node.op for graph in graphs for nodes in (
            graph.node, *(function.node_def for function in graph.library.function)) for node in nodes})
        return results
    real = Run.run_step
    monkeypatch.setattr(Run, 'run_step', run_step)
    trainer.train(settings(**{'max_steps': 1, 'learning_rate': 0.01, 'summary_steps': 1, 'variable_update': mode,
                              **LARGE[network]}))
    assert ran and not [op for ops in ran for op in ops if ANY_ORDER.fullmatch(op)]
    assert any('MatMul' in op for ops in ran for op in ops)  # the graphs of the towers
