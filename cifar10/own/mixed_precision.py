"""Mixed precision for float32 code: convolutions and matrix products compute in a narrower type.

Their inputs are cast, and their outputs are cast back, forward and backward. Variables, statistics, normalisations and
all other operations stay float32.
"""
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from cifar10.own.subgraphs import operation_of, tensor_of

# Types of operations -> the inputs to narrow; None: all.
_NARROWED = {
    'MatMul': None, 'BatchMatMul': None, 'BatchMatMulV2': None, 'Einsum': None,
    'Conv2D': (0, 1), 'Conv2DBackpropInput': (1, 2), 'Conv2DBackpropFilter': (0, 2),
    'DepthwiseConv2dNative': (0, 1), 'DepthwiseConv2dNativeBackpropInput': (1, 2),
    'DepthwiseConv2dNativeBackpropFilter': (0, 2),
    'Conv3D': (0, 1), 'Conv3DBackpropInputV2': (1, 2), 'Conv3DBackpropFilterV2': (0, 2)}


def computes_in(nodes: Iterable[tf.NodeDef], dtype: tf.DType) -> bool:
    """Returns whether any convolution or matrix product computes in a type."""
    return any(node.op in _NARROWED and node.attr['T'].type == dtype.as_datatype_enum for node in nodes)


def narrow(nodes: dict[str, tf.NodeDef], dtype: tf.DType) -> None:
    """Narrows the type of convolutions and matrix products among the operations of a graph, given by their names."""
    for name, node in list(nodes.items()):
        if node.op not in _NARROWED or node.attr['T'].type != tf.float32.as_datatype_enum:
            continue
        narrowed = tf.NodeDef()
        narrowed.CopyFrom(node)
        narrowed.name = f'{name}/{dtype.name}'
        narrowed.attr['T'].type = dtype.as_datatype_enum
        for number, source in enumerate(node.input):
            if not source.startswith('^') and number in (_NARROWED[node.op] or range(len(node.input))):
                narrowed.input[number] = _cast(nodes, source, dtype, node.device)
        nodes[narrowed.name] = narrowed
        nodes[name] = _cast_node(name, narrowed.name, dtype, tf.float32, node.device)


def _cast(nodes, source, dtype, device):
    """Returns the name of a tensor cast to a type; all uses share one cast."""
    number = tensor_of(source).partition(':')[2]
    name = f'{operation_of(source)}/{dtype.name}_{number}'
    if name not in nodes:
        nodes[name] = _cast_node(name, source, tf.float32, dtype, device)
    return name


def _cast_node(name, source, before, after, device):
    node = tf.NodeDef(name=name, op='Cast', input=[source], device=device)
    node.attr['SrcT'].type, node.attr['DstT'].type = before.as_datatype_enum, after.as_datatype_enum
    return node
