"""Code of the user's own, as people write it for one device. Its towers are traced once, and copied.

The path of a tower, in the order of its files: `isolated_call` calls the code in a graph of its own, `tracing` takes
the tower from there as a value, `copying` adds a copy to each tower, and `follow_up` has the part of a train_op that
runs once, after the means. These use `subgraphs`, `assignments`, `gradient_marks` and `mixed_precision`. `computed`
hands a copy to the update modes. `made_up` calls a tower for other batches, and `rehearsal` compares them in numbers;
`refusals` has the rules.

The entry points: the registry leads to `recipe_towers` (networks, losses, augmentations) and `model_towers`, which
derive from `towers`, to `batches` and to `optimizer`; `cifar10.on_towers` leads to `script`. `code` executes files,
with `patches`, `tf1` and `estimator`. No other room imports this one.
"""
