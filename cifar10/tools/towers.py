"""The towers of a step, all on one device, computed once more from given variables and batches.

Nothing is updated, so a look changes no variable.
"""
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.data import draws, pipeline
from cifar10.data.records import Records
from cifar10.model import classifier
from cifar10.model.network_draws import at_position
from cifar10.model.recipe import Recipe
from cifar10.parallel.towers import build_towers, dense, tower_loss
from cifar10.training.plan import Plan


class Batch(NamedTuple):
    """The batch of a tower: tensors, or their values.

    Attributes:
      images: float32 [n, height, width, 3], as the network gets them.
      labels: int32 [n], their classes.
      first: int64, the position of the first of them in the stream of examples.
      examples: int64 [n], their indices in the data set.
      originals: uint8 [n, 3, image_size, image_size], before augmentation.
    """
    images: np.ndarray
    labels: np.ndarray
    first: int
    examples: np.ndarray
    originals: np.ndarray


class Towers(NamedTuple):
    """The operations and tensors to look into a step with.

    Attributes:
      fetches: for each tower a dict of tensors: 'loss'; 'predictions', int64 [n]; 'losses', float32 [n]; and
        'gradients', of each trained variable by its name.
      fed: for each tower the tensors to feed with the images, labels and first position of its batch.
      batch: the Batch at the positions that `positions` is fed with.
      positions: int64 scalars: the positions of the first example of the batch and of the first one of the step.
      initialise, start_inputs, average: as `Run` needs them.
    """
    fetches: list[dict[str, Any]]
    fed: list[list[tf.Tensor]]
    batch: Batch
    positions: tuple[tf.Tensor, tf.Tensor]
    initialise: Sequence[tf.Operation]
    start_inputs: tf.Operation
    average: None = None


def on_one_device(plan: Plan) -> Plan:
    """Returns a plan whose towers are all on the first of its devices."""
    first_group = dataclasses.replace(plan.devices, groups=plan.devices.groups[:1])
    return plan._replace(devices=first_group.with_towers(plan.settings.towers.num_towers))


def build(plan: Plan, learnt: Mapping[str, Any]) -> Towers:
    """Builds the towers in the current default graph.

    Args:
      plan: of the step, `on_one_device`.
      learnt: what the recipe has learnt, if the variables keep their initial values.
    """
    settings = plan.settings
    batch_size, seed = settings.towers.batch_size, settings.run.seed
    with tf.device('/cpu:0'):
        tf.train.get_or_create_global_step()  # a network may ask for it
        first, step = (tf.placeholder(tf.int64, [], f'input/{name}') for name in ('first', 'step'))
        optimizer = plan.precision.optimizer(plan.recipe.optimizer(*plan.recipe.learning_rates(step)))()
        batch, read = batch_at(first, step, batch_size, plan.data, plan.recipe, seed)
    fed = []

    def tower(k, scope):
        fed.append([tf.placeholder(tensor.dtype, tensor.shape) for tensor in (batch.images, batch.labels, first)])
        logits, losses = [], []

        def network(*arguments):
            logits.append(plan.recipe.inference(*arguments, **learnt))
            return logits[0]

        def loss_of_each(*arguments):
            losses.append(plan.recipe.losses(*arguments))
            return losses[0]
        with plan.recipe.divided(plan.devices.parts[k]), at_position(seed, fed[k][2]):
            loss, _ = tower_loss(scope, lambda: classifier.add_loss(
                network, *fed[k][:2], plan.precision.dtype, loss_of_each))
        pairs = dense(optimizer.compute_gradients(loss, colocate_gradients_with_ops=True))
        return dict(
            loss=loss, predictions=tf.argmax(logits[0], 1),
            losses=losses[0],
            gradients={variable.op.name: gradient for gradient, variable in pairs if gradient is not None})

    fetches = build_towers(plan.devices.tower_devices, tower)
    return Towers(fetches, fed, batch, (first, step), [tf.global_variables_initializer()], read)


def batch_at(first: tf.Tensor, step: tf.Tensor, count: int, data: Records, recipe: Recipe,
             seed: int) -> tuple[Batch, tf.Operation]:
    """Builds the batch that a tower is fed, with the images that it is made from.

    Args:
      first, step: int64 scalars, the positions of the first example of the batch and of the first one of the step.
      count: the examples of the batch.
      data, recipe, seed: of the run.

    Returns:
      (the Batch, the operation that reads the data; to be run once before).
    """
    memory = data.load()
    images, labels = pipeline.train_batch(memory, recipe.augmentation, first, step, count, seed)
    examples = draws.shuffled(first + tf.range(count, dtype=tf.int64), data.count, seed)
    _, originals = memory.take(examples)
    return Batch(images, labels, first, examples, originals), tf.group(memory.read)
