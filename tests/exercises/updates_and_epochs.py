"""Answers to updates_and_epochs."""
import math
from typing import NamedTuple

import numpy as np


def accepted_formula(updates, gpus, batch, examples):
    return updates * gpus * batch / examples, updates * gpus


mistakes_in_formula = {
    'divided_updates': ('for 30000 updates of 2 GPUs', 'examples, updates * gpus', 'examples, updates / gpus'),
    'epochs_alone': ('it does not return a pair of numbers', 'examples, updates * gpus', 'examples'),
    'epochs_of_one_gpu': ('for 30000 updates of 2 GPUs', 'gpus * batch', 'batch'),
    'of_cifar_10': ('is right', 'batch / examples', '128 / 50000'),
    # As if all GPUs shared one batch.
    'of_one_gpu': (
        'for 30000 updates of 2 GPUs',
        'gpus * batch / examples, updates * gpus', 'batch / examples, updates'),
    'other_way_round': (
        'for 100000 updates of 1 GPU',
        'gpus * batch / examples, updates * gpus', 'gpus, updates * gpus * batch / examples'),
    'same_updates': ('for 30000 updates of 2 GPUs', 'examples, updates * gpus', 'examples, updates'),
    # Each epoch loses its last, smaller batch.
    'steps_of_an_epoch_rounded': (
        'for 100000 updates of 1 GPU',
        'updates * gpus * batch / examples', 'updates / (examples // (gpus * batch))'),
    'whole_epochs': ('for 30000 updates of 2 GPUs', 'batch /', 'batch //'),
}


def accepted_generator(updates, gpus, batch, examples):
    updates *= gpus
    yield updates * batch / examples
    yield updates


def accepted_list(updates, gpus, batch, examples):
    used = updates * gpus * batch
    return [used / examples, used / batch]


class Length(NamedTuple):
    epochs: float
    updates: int


def accepted_named_tuple(updates, gpus, batch, examples):
    return Length(updates / (examples / (gpus * batch)), gpus * updates)


def accepted_numpy(updates, gpus, batch, examples):
    return np.array([batch / examples, 1.0]) * updates * gpus


def refused_epochs_rounded_up(updates, gpus, batch, examples):
    """for 30000 updates of 2 GPUs"""
    return math.ceil(updates * gpus * batch / examples), updates * gpus


# The counter of the tutorial's comment: batches processed, divided by the number of GPUs.
def refused_updates_of_the_whole_batch(updates, gpus, batch, examples):
    """for 30000 updates of 2 GPUs"""
    batches = updates / gpus
    return batches * gpus * batch / examples, updates
