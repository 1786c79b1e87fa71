"""Answers to step_with_losses."""
import tensorflow.compat.v1 as tf


def accepted_after_the_losses(devices, weight, read, loss_of, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, value))
            gradients += tf.gradients(losses[k], value)
    with tf.device('/cpu:0'), tf.control_dependencies(losses):
        return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))


variants_of_after_the_losses = {
    'after_a_group': ('control_dependencies(losses)', 'control_dependencies([tf.group(losses)])'),
    'after_the_reads': (
        ' = []', ', values = [], []',
        'value = read(k)',
        'value = read(k)\n'
        'values.append(value)',
        'control_dependencies(losses)', 'control_dependencies(values)'),
}


mistakes_in_after_the_losses = {
    'after_the_first_tower': ('for a weight of 1, 2 towers', '(losses)', '(losses[:1])'),
    'after_the_gradients': ('because nothing orders them', '(losses)', '(gradients)'),
    'all_towers_on_one_device': (
        'the loss of tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'applied_twice': (
        'the weight afterwards is 0.4; 0.7 is right',
        'return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'return losses, tf.group([weight.assign_sub(rate * tf.add_n(gradients) / len(devices)) for _ in range(2)])'),
    'first_loss_for_all': ('what is fetched as losses', 'k, value', '0, value'),
    'mean_of_the_losses_only': (
        'it returns 1 loss; 2 is right',
        'return losses', 'return [tf.add_n(losses) / len(losses)]'),
    'no_barrier': (
        'towers that read 0.2 s late, the losses that are fetched with the update are',
        ', tf.control_dependencies(losses)', ''),
    'reads_the_weight_itself': ('tower 0 does not read the weight with read(0)', 'read(k)', 'weight.read_value()'),
    'sum': ('the weight afterwards is 0.6; 0.8 is right', ' / len(devices)', ''),
    'tower_left_out': ('the weight afterwards is', 'tf.add_n(gradients)', 'tf.add_n(gradients[:-1] or gradients)'),
    'update_made_outside': (
        'because nothing orders them',
        "with tf.device('/cpu:0'), tf.control_dependencies(losses):\n"
        '    return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))\n'
        'with tf.control_dependencies(losses):\n'
        '    return losses, tf.group(update)'),
    'waits_for_itself': (
        'it returns',
        "with tf.device('/cpu:0'), tf.control_dependencies(losses):\n"
        '    return losses,',
        'return losses, lambda:'),
}


def accepted_mean_of_the_losses(devices, weight, read, loss_of, rate):
    losses, values = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            values.append(read(k))
            losses.append(loss_of(k, values[k]))
    gradients = tf.gradients(tf.add_n(losses) / len(losses), values)
    with tf.control_dependencies(losses):
        return losses, tf.group(weight.assign_sub(rate * tf.add_n(gradients)))


def accepted_optimizer(devices, weight, read, loss_of, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, value))
            gradients += tf.gradients(losses[k], value)
    optimizer = tf.train.GradientDescentOptimizer(rate)
    with tf.control_dependencies(losses):
        return losses, optimizer.apply_gradients([(tf.add_n(gradients) / len(devices), weight)])


def refused_losses_after_the_update(devices, weight, read, loss_of, rate):
    """what is fetched as losses with the update is [2.1]; [3] is right"""
    gradients = []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            gradients += tf.gradients(loss_of(k, value), value)
    update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices)).op
    losses = []
    for k, device in enumerate(devices):
        with tf.device(device), tf.control_dependencies([update]):
            losses.append(loss_of(k, read(k)))
    return losses, update


def refused_second_read_for_the_losses(devices, weight, read, loss_of, rate):
    """because nothing orders them"""
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device):
            value = read(k)
            losses.append(loss_of(k, read(k)))
            gradients += tf.gradients(loss_of(k, value), value)
    with tf.device('/cpu:0'), tf.control_dependencies(gradients):
        return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
