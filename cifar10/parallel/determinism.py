"""Deterministic operations: a switch of the whole process, which TensorFlow offers no way to turn off again."""
import os

import tensorflow as tf2

_is_on = False


def turn_on() -> None:
    """Makes TensorFlow's operations deterministic in this process, from now on."""
    global _is_on
    tf2.config.experimental.enable_op_determinism()
    _is_on = True


def is_on() -> bool:
    """Returns whether operations are deterministic, because of `turn_on` or of the environment."""
    return _is_on or os.environ.get('TF_DETERMINISTIC_OPS', '').lower() in ('1', 'true')
