"""The networks, one file each: `inference(images)` returns logits and adds its L2 losses to `losses`.

A network is a function of its images alone. It knows no device, no tower and no update mode: where
its variables live is decided around it.
"""
from cifar10.networks import classic

_NETWORKS = {'classic': classic.inference}


def get(name):
    """Returns the function images -> logits of the network called `name`."""
    return _NETWORKS[name]
