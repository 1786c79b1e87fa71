# refused: for 30000 updates of 2 GPUs
def updates_and_epochs(updates, gpus, batch, examples):
    """The counter of the tutorial's comment: batches processed, divided by the number of GPUs."""
    batches = updates / gpus
    return batches * gpus * batch / examples, updates
