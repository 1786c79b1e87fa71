def updates_and_epochs(updates, gpus, batch, examples):
    used = updates * gpus * batch
    return [used / examples, used / batch]
