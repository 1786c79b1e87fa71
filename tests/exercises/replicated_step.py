"""Answers to replicated_step."""
import tensorflow.compat.v1 as tf


def accepted_collective(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for k, device in enumerate(devices):
        with tf.device(device):
            total = tf.raw_ops.CollectiveReduce(
                input=gradients[k], group_size=len(devices), group_key=1, instance_key=1, merge_op='Add',
                final_op='Id', subdiv_offsets=[0], communication_hint='ring')
            updates.append(weights[k].assign_sub(rate * total / len(devices)))
    return losses, tf.group(updates)


def accepted_ring(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    sums, sent = list(gradients), list(gradients)
    for _ in range(len(devices) - 1):
        sent = sent[-1:] + sent[:-1]
        for k, device in enumerate(devices):
            with tf.device(device):
                sums[k] = sums[k] + sent[k]
    for k, device in enumerate(devices):
        with tf.device(device):
            updates.append(weights[k].assign_sub(rate * sums[k] / len(devices)))
    return losses, tf.group(updates)


mistakes_in_ring = {
    'ring_without_the_add': ('because nothing orders them', 'sums[k] + sent', 'sent'),
    'sum': ('the updated weight_0 is 1.2; 0.6 is right', ' / len(devices)', ''),
}


def accepted_sum_on_each_device(devices, x, rate):
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for device, weight in zip(devices, weights):
        with tf.device(device):
            updates.append(weight.assign_sub(rate * tf.add_n(gradients) / len(devices)))
    return losses, tf.group(updates)


mistakes_in_sum_on_each_device = {
    'all_towers_on_one_device': (
        'the loss of tower 1 is on /device:CPU:0; /cpu:1 is right',
        'with tf.device(device):\n'
        "    weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))",
        'with tf.device(device):\n'
        "    weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))\n"
        'with tf.device(devices[0]):'),
    'losses_of_the_first_copy': (
        'the loss of tower 1 does not come from weight_1 alone',
        'losses.append(tf.reduce_mean(tf.square(weights[k] - share)))\n'
        'gradients += tf.gradients(losses[k], weights[k])',
        'losses.append(tf.reduce_mean(tf.square(weights[0] - share)))\n'
        'gradients += tf.gradients(losses[k], weights[0])'),
    'one_shared_weight': (
        'the graph has 1 trainable variable (weight); 2 is right',
        "weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))",
        "with tf.variable_scope('', reuse=k > 0):\n"
        "    weights.append(tf.get_variable('weight', initializer=0.0))"),
    'own_gradient_only': (
        'the updated weight_0 is 0.3; 0.6 is right',
        'for device, weight in zip(devices, weights):\n'
        '    with tf.device(device):\n'
        '        updates.append(weight.assign_sub(rate * tf.add_n(gradients) / len(devices)))',
        'for weight, gradient in zip(weights, gradients):\n'
        '    updates.append(weight.assign_sub(rate * gradient))'),
}


def refused_a_member_does_not_come(devices, x, rate):
    """the step does not end: one of its operations waits for another that never runs"""
    weights, losses, gradients, updates = [], [], [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weights.append(tf.get_variable(f'weight_{k}', initializer=0.0))
            losses.append(tf.reduce_mean(tf.square(weights[k] - share)))
            gradients += tf.gradients(losses[k], weights[k])
    for k, device in enumerate(devices):
        with tf.device(device):
            total = tf.raw_ops.CollectiveReduce(
                input=gradients[k], group_size=len(devices) + 1, group_key=1, instance_key=1, merge_op='Add',
                final_op='Id', subdiv_offsets=[0], communication_hint='ring')
            updates.append(weights[k].assign_sub(rate * total / len(devices)))
    return losses, tf.group(updates)


def refused_arguments_missing(devices, x, rate):
    """subdiv_offsets"""
    losses, updates = [], []
    for k, (device, share) in enumerate(zip(devices, tf.split(x, len(devices)))):
        with tf.device(device):
            weight = tf.get_variable(f'weight_{k}', initializer=0.0)
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradient, = tf.gradients(losses[k], weight)
            total = tf.raw_ops.CollectiveReduce(input=gradient, group_size=len(devices), group_key=1, instance_key=1,
                                                merge_op='Add', final_op='Id')
            updates.append(weight.assign_sub(rate * total / len(devices)))
    return losses, tf.group(updates)
