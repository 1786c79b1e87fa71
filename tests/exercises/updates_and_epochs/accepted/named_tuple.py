from typing import NamedTuple


class Length(NamedTuple):
    epochs: float
    updates: int


def updates_and_epochs(updates, gpus, batch, examples):
    return Length(updates / (examples / (gpus * batch)), gpus * updates)
