# refused: for 30000 updates of 2 GPUs
import math


def updates_and_epochs(updates, gpus, batch, examples):
    return math.ceil(updates * gpus * batch / examples), updates * gpus
