# refused: for 30000 updates of 2 GPUs
def updates_and_epochs(updates, gpus, batch, examples):
    """As if all GPUs shared one batch."""
    return updates * batch / examples, updates
