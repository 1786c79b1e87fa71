"""Data sets, downloaded, rendered or converted, and the batches that are made from them."""

SIZE = 32  # height and width of CIFAR's images
