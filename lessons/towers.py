#!/usr/bin/env python3
"""Lesson 1, towers: one model on several devices; each device computes a share of the batch.

    python lessons/towers.py --towers=2

A linear model, prediction = x @ weights + bias, is built once for each tower, over shared variables. The lesson prints
the batch, the names of the variables and operations, the losses and gradients of all towers, and the gradient of the
whole batch, which is the mean of the towers' gradients. Then it builds the towers with `tf.Variable`, which makes a set
of variables for each tower. All numbers can be checked by hand.

In the package: `build_towers`, `shared_variables` and `average_gradients` in cifar10/parallel/towers.py.
Exercises: lessons/exercises/towers.py.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cifar10.base import startup  # noqa: E402
from cifar10.programs import program  # noqa: E402

if status := program.run(startup.start_tensorflow):
    sys.exit(status)

import numpy as np  # noqa: E402
import tensorflow.compat.v1 as tf  # noqa: E402

from lessons import common  # noqa: E402

# Four examples: two inputs and a target each, and the row of a table that each looks up.
X = np.array([[1, 2], [2, 1], [3, 0], [0, 3]], np.float32)
Y = np.array([1, 2, 3, -1], np.float32)
ROWS = np.array([0, 2, 2, 3])
RATE = 0.1


def shared(name, value):
    """Returns the variable of a name, which the first tower creates with a value."""
    return tf.get_variable(name, initializer=value)


def loss_of(x, y, variable=shared):
    """Builds the model and its loss.

    Args:
      x, y: inputs and targets, float32 [examples, 2] and [examples].
      variable: function (name, initial value) -> variable.

    Returns:
      The mean of the squared errors, float32 scalar.
    """
    with tf.variable_scope('linear'):
        with tf.device('/cpu:0'):  # the variables, wherever the tower computes
            weights = variable('weights', [1.0, -1.0])
            bias = variable('bias', 0.0)
        prediction = tf.linalg.matvec(x, weights, name='product') + bias
    return tf.reduce_mean(tf.square(prediction - y), name='loss')


def build_towers(devices, variable=shared):
    """Builds one tower on each device; returns the losses and, for each tower, its gradients of all variables."""
    losses, tower_grads = [], []
    for k, share in enumerate(np.split(np.arange(len(X)), len(devices))):
        # The name scope is in the names of operations, but not in the names of variables. With
        # `reuse`, every tower after the first gets the variables of the first.
        with tf.device(devices[k]), tf.name_scope(f'tower_{k}'), \
                tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            losses.append(loss_of(tf.constant(X[share]), tf.constant(Y[share]), variable))
            tower_grads.append(tf.gradients(losses[k], tf.trainable_variables()))
    return losses, tower_grads


def average(tower_grads):
    """Returns the mean gradient of each variable, from K lists of the gradients of all variables."""
    return [tf.add_n(gradients) / len(gradients) for gradients in zip(*tower_grads)]


def show_examples(num_towers):
    """Prints the batch, and the examples of each tower."""
    print('The batch: for each example two inputs x and the target y. The weights start at 1 and -1, the bias at 0.')
    for k, share in enumerate(np.split(np.arange(len(X)), num_towers)):
        for x, y in zip(X[share], Y[share]):
            print(f'  tower {k}       x {common.numbers(x, 0, 3)}    y {common.numbers(y, 0, 3)}')


def show_names():
    """Prints the variables and products in the graph, with their devices."""
    print('\nThe variables, one set for any number of towers:')
    for variable in tf.trainable_variables():
        print(f'  {variable.op.name:30} on {variable.device}')
    print('\nThe products of inputs and weights, one for each tower:')
    for operation in tf.get_default_graph().get_operations():
        if operation.name.endswith('product/MatMul'):
            print(f'  {operation.name:30} on {operation.device}')


def show_gradients(session, losses, tower_grads, means):
    """Prints losses and gradients of the towers, their means, and the whole batch's; returns the gradients."""
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        whole_loss = loss_of(tf.constant(X), tf.constant(Y))
    whole_grads = tf.gradients(whole_loss, tf.trainable_variables())
    loss_values, whole_value = session.run([losses, whole_loss])
    print("\nEach tower's loss, their mean, and the loss of the whole batch:")
    for k, value in enumerate(loss_values):
        print(f'  tower {k}       {common.numbers(value)}')
    print(f'  mean          {common.numbers(np.mean(loss_values))}')
    print(f'  whole batch   {common.numbers(whole_value)}')

    grad_values, mean_values, whole_values = session.run([tower_grads, means, whole_grads])
    print('\nThe gradient of the two weights and the bias: of each tower, the mean, and of the whole batch:')
    for k, values in enumerate(grad_values):
        print(f'  tower {k}       {common.numbers(np.hstack(values))}')
    print(f'  mean          {common.numbers(np.hstack(mean_values))}')
    print(f'  whole batch   {common.numbers(np.hstack(whole_values))}')
    return grad_values, np.hstack(mean_values), np.hstack(whole_values)


def show_update(session, means):
    """Applies the means once, as gradient descent does, and prints the variables before and after."""
    variables = tf.trainable_variables()
    # Each mean needs all towers, so no variable changes before every tower has read it.
    update = tf.group([variable.assign_sub(RATE * mean)
                       for variable, mean in zip(variables, means)])
    print(f'\nThe variables before and after the one update, variable - {RATE} * mean:')
    print(f'  before        {common.numbers(np.hstack(session.run(variables)))}')
    session.run(update)
    print(f'  after         {common.numbers(np.hstack(session.run(variables)))}')


def show_sparse(session, num_towers):
    """Prints the towers' gradients of a table, where each example looks up one row."""
    table = tf.get_variable('table', [4, 2], initializer=tf.zeros_initializer())
    session.run(table.initializer)
    print(f"\nThe examples also look up rows {' '.join(map(str, ROWS))} of a table; the loss is the mean over the "
          f'examples of the sum of row * x\n(for example 0: of row {ROWS[0]} * ({X[0, 0]:g}, {X[0, 1]:g})).\n'
          'The gradient of the table has only the rows that a tower looked up (tf.IndexedSlices):')
    for k, share in enumerate(np.split(np.arange(len(X)), num_towers)):
        looked_up = tf.nn.embedding_lookup(table, tf.constant(ROWS[share]))
        loss = tf.reduce_mean(tf.reduce_sum(looked_up * X[share], axis=1))
        values, indices = session.run([(slices.values, slices.indices) for slices in tf.gradients(loss, table)][0])
        for row, value in zip(indices, values):
            print(f'  tower {k}  row {row}{common.numbers(value)}')
    print('Their mean is an exercise of this lesson: lessons/exercises/towers.py.')


def show_own_variables(devices):
    """Builds the same towers with tf.Variable, and prints the variables and the gradients of tower 0."""
    with tf.Graph().as_default():
        _, tower_grads = build_towers(devices, lambda name, value: tf.Variable(value, name=name))
        variables = tf.trainable_variables()
    print(f'\nWith tf.Variable instead of tf.get_variable, tf.trainable_variables() has {len(variables)} variables:')
    for variable in variables:
        print(f'  {variable.op.name}')
    trained = [variable.op.name for gradient, variable in zip(tower_grads[0], variables) if gradient is not None]
    print(f"The loss of tower 0 has gradients only of {' and '.join(trained)}.")


def draw(path, values, mean, whole):
    """Draws the gradients of K towers, their mean and the whole batch's gradient, [weight, weight, bias] each."""
    from matplotlib import pyplot
    figure, axes = pyplot.subplots(figsize=(7, 3), layout='constrained')
    rows = {**{f'tower {k}': np.hstack(value) for k, value in enumerate(values)}, 'mean': mean, 'whole batch': whole}
    for i, (label, row) in enumerate(rows.items()):
        axes.bar(np.arange(3) + 0.8 * i / len(rows), row, 0.7 / len(rows), label=label)
    axes.set_xticks(np.arange(3) + 0.4 - 0.4 / len(rows), ['weight 0', 'weight 1', 'bias'])
    axes.axhline(0, color='black', linewidth=0.8)
    axes.set_ylabel('gradient')
    axes.legend(frameon=False, ncols=2, fontsize='small')
    common.save(figure, path)


def tell(devices):
    """Runs the lesson on K devices; returns the gradients from `show_gradients`."""
    losses, tower_grads = build_towers(devices)
    with tf.device('/cpu:0'):
        means = average(tower_grads)
    show_examples(len(devices))
    show_names()
    with common.session(devices) as session:
        session.run(tf.global_variables_initializer())
        gradients = show_gradients(session, losses, tower_grads, means)
        show_update(session, means)
        show_sparse(session, len(devices))
    show_own_variables(devices)
    return gradients


def main():
    """Reads the flags and runs the lesson."""
    parser = common.parser(__doc__, plot='the gradients')
    parser.add_argument('--towers', type=int, choices=(1, 2, 4), default=2,
                        help='number of towers, which share the 4 examples evenly (default: %(default)s)')
    arguments = common.parse(parser)
    gradients = tell(common.choose_devices(arguments.device, arguments.towers))
    if arguments.plot:
        draw(arguments.plot, *gradients)


if __name__ == '__main__':
    sys.exit(program.run(main))
