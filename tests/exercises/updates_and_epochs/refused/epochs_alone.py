# refused: it does not return a pair of numbers
def updates_and_epochs(updates, gpus, batch, examples):
    return updates * gpus * batch / examples
