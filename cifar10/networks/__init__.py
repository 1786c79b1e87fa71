"""The networks, one file each.

A network is a function of its images. It knows no tower and no update mode: where its variables live is
decided around it.
"""
from collections.abc import Callable
from typing import NamedTuple


class Network(NamedTuple):
    """A network.

    Attributes:
      inference: function (images, devices) -> logits, float32 [n, classes]. It makes its variables with
        `tf.get_variable`, adds its L2 losses to the collection LOSSES and its layers' outputs to ACTIVATIONS.
        `devices` names the devices that share its work.
      parts: into how many parts it can be divided, each on a device of its own.
    """
    inference: Callable
    parts: int = 1
