# refused: the step does not end: one of its operations waits for another that does not come
import tensorflow.compat.v1 as tf


def replicated_step(devices, x, rate):
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
