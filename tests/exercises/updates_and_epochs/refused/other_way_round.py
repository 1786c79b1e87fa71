# refused: for 100000 updates of 1 GPU
def updates_and_epochs(updates, gpus, batch, examples):
    return updates * gpus, updates * gpus * batch / examples
