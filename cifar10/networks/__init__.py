"""The networks, one file each: `inference(images, devices)` returns logits and adds its L2 losses to `losses`.

A network is a function of its images. It knows no tower and no update mode: where its variables live
is decided around it. Devices it knows only as two names, for the case that a tower has more than one.
"""
from cifar10.networks import classic

_NETWORKS = {'classic': classic.inference}


def get(name):
    """Returns the function (images, devices) -> logits of the network called `name`."""
    return _NETWORKS[name]
