def updates_and_epochs(updates, gpus, batch, examples):
    updates *= gpus
    yield updates * batch / examples
    yield updates
