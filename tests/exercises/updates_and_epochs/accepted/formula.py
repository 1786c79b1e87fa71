def updates_and_epochs(updates, gpus, batch, examples):
    return updates * gpus * batch / examples, updates * gpus
