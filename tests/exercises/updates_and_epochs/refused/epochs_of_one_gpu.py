# refused: for 30000 updates of 2 GPUs
def updates_and_epochs(updates, gpus, batch, examples):
    return updates * batch / examples, updates * gpus
