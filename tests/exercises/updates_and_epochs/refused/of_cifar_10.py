# refused: is right
def updates_and_epochs(updates, gpus, batch, examples):
    return updates * gpus * 128 / 50000, updates * gpus
