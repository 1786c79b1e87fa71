# refused: for 100000 updates of 1 GPU
def updates_and_epochs(updates, gpus, batch, examples):
    """Each epoch loses its last, smaller batch."""
    return updates / (examples // (gpus * batch)), updates * gpus
