"""Code of the user's own: networks, losses and optimizers in Python files, as people write them for one device.

No other room imports this one. The registry leads to `loss`, `optimizer`, `augmentation` and, for each `--network`, to
`model`, which hands a function without the arguments of a whole model on to `network`; `cifar10.on_towers` leads to
`script`. `code` executes a file, and turns its errors into one line. `call` calls the function in a graph of its own.
What it computes becomes a value (`traced`: its assignments in `writes`, its precision in `mixed`, its operations in
`pieces`; of a whole model, where gradients leave in `leaving`, and what follows them in `train_op`). `copied` adds it
to each tower. `rehearsal` tries it in numbers.

A *copy* is here a tower's operations; in `parallel.replicated` it is a set of variables.
"""
