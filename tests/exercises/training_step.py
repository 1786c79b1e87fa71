"""Answers to training_step."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def accepted_by_hand(devices, loss_of, optimizer):
    losses, tower_grads = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope(tf.get_variable_scope(), reuse=k > 0):
            losses.append(loss_of(k))
            tower_grads.append(optimizer.compute_gradients(losses[k]))
    means = []
    for pairs in zip(*tower_grads):
        gradients, variables = zip(*pairs)
        means.append((tf.reduce_mean(tf.stack(gradients), 0), variables[0]))
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())
        return tf.add_n(losses) / len(losses), train_op


variants_of_by_hand = {
    'auto_reuse_and_step_by_hand': (
        'k > 0', 'tf.AUTO_REUSE',
        'train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())',
        'update = optimizer.apply_gradients(means)\n'
        'train_op = tf.group(update, tf.train.get_or_create_global_step().assign_add(1))'),
    'expand_and_concat': ('tf.stack(gradients)', 'tf.concat([tf.expand_dims(each, 0) for each in gradients], 0)'),
}


mistakes_in_by_hand = {
    'all_towers_on_one_device': (
        'tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'applied_for_each_tower': (
        'is right',
        'train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())',
        'step = tf.train.get_or_create_global_step()\n'
        'train_op = tf.group([optimizer.apply_gradients(pairs, step) for pairs in tower_grads])'),
    'applied_twice': (
        'is right',
        'train_op =',
        'optimizer.apply_gradients(means, tf.train.get_or_create_global_step())\n'
        'with tf.control_dependencies([optimizer.apply_gradients(means)]):\n'
        '    train_op ='),
    'global_step_counts_towers': (
        'after 1 step the global step is 2; 1 is right',
        'train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())',
        'step = tf.train.get_or_create_global_step()\n'
        'train_op = tf.group(optimizer.apply_gradients(means), step.assign_add(len(devices)))'),
    'global_step_is_not_counted': (
        'after 1 step the global step is 0; 1 is right',
        'train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())',
        'tf.train.get_or_create_global_step()\n'
        'train_op = optimizer.apply_gradients(means)'),
    'gradients_of_tower_0_only': (
        'after 1 step the variable weights is',
        'tf.reduce_mean(tf.stack(gradients), 0)', 'gradients[0]'),
    'loss_after_the_step': (
        'the loss that is fetched with step 1 is',
        "with tf.device('/cpu:0'), tf.control_dependencies(losses):\n"
        '    train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())\n'
        '    return tf.add_n(losses)',
        "with tf.device('/cpu:0'), tf.control_dependencies(losses):\n"
        '    train_op = optimizer.apply_gradients(means, tf.train.get_or_create_global_step())\n'
        'with tf.variable_scope(tf.get_variable_scope(), reuse=True), tf.control_dependencies([train_op]):\n'
        '    return tf.add_n([loss_of(k) for k in range(len(devices))])'),
    'loss_of_tower_0': ('the loss that is fetched with step', 'tf.add_n(losses) / len(losses)', 'losses[0]'),
    'no_barrier': ('because nothing orders them', ', tf.control_dependencies(losses)', ''),
    'no_global_step': ('the graph has no global step', 'means, tf.train.get_or_create_global_step()', 'means'),
    'same_share_for_all': ('it builds the losses [0]; [0, 1] is right', 'loss_of(k)', 'loss_of(0)'),
    'sum': ('after 1 step the variable weights is', 'tf.reduce_mean(tf.stack(gradients), 0)', 'tf.add_n(gradients)'),
    'tower_left_out': (
        'it builds the losses [0]; [0, 1] is right',
        'enumerate(devices)', 'enumerate(devices[:-1] or devices)'),
    'variables_for_each_tower': (
        '4 trainable variables (tower_0/weights, tower_0/bias, tower_1/weights, tower_1/bias); 2 is right',
        'tf.get_variable_scope(), reuse=k > 0', "f'tower_{k}'",
        'tower_grads.append(optimizer.compute_gradients(losses[k]))',
        "variables = tf.trainable_variables(f'tower_{k}/')\n"
        'tower_grads.append(optimizer.compute_gradients(losses[k], variables))'),
    'without_reuse': (
        'it raises ValueError in line 8: Variable weights already exists',
        ', tf.variable_scope(tf.get_variable_scope(), reuse=k > 0)', ''),
}


def accepted_minimize_of_the_mean(devices, loss_of, optimizer):
    losses = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.variable_scope('model', reuse=k > 0):
            losses.append(loss_of(k))
    with tf.device('/cpu:0'):
        loss = tf.reduce_mean(losses)
        with tf.control_dependencies([loss]):
            return loss, optimizer.minimize(loss, tf.train.get_or_create_global_step())


def accepted_package(devices, loss_of, optimizer):
    losses = build_towers(devices, lambda k, scope: loss_of(k))
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies(losses):
        pairs = average_gradients([optimizer.compute_gradients(loss) for loss in losses])
        return tf.add_n(losses) / len(losses), optimizer.apply_gradients(pairs, global_step=step)
