"""Data sets (downloaded, rendered or converted) and their batches."""

SIZE = 32  # height and width of CIFAR's images
