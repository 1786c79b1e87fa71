"""Checkpoints of TensorFlow's CIFAR-10 tutorial, which are resumed and evaluated too.

Their variables have the same names. But global_step is a float32, nothing counts examples, and no settings are stored.
"""
_BATCH_SIZE = 128  # examples of one step


def examples_seen(step: int) -> int:
    """Returns how many examples a run had seen by a step."""
    return step * _BATCH_SIZE
