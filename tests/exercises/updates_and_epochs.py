"""Answers to updates_and_epochs."""
from typing import NamedTuple


def accepted_formula(updates, gpus, batch, examples):
    return updates * gpus * batch / examples, updates * gpus


mistakes_in_formula = {
    'epochs_alone': ('it does not return a pair of numbers', 'examples, updates * gpus', 'examples'),
    'epochs_of_one_gpu': ('for 30000 updates of 2 GPUs', 'gpus * batch', 'batch'),
    'same_updates': ('for 30000 updates of 2 GPUs', 'examples, updates * gpus', 'examples, updates'),
    # Each epoch loses its last, smaller batch.
    'steps_of_an_epoch_rounded': (
        'for 100000 updates of 1 GPU',
        'updates * gpus * batch / examples', 'updates / (examples // (gpus * batch))'),
}


class Length(NamedTuple):
    epochs: float
    updates: int


def accepted_named_tuple(updates, gpus, batch, examples):
    return Length(updates / (examples / (gpus * batch)), gpus * updates)
