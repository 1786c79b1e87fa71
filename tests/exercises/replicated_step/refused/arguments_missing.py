# refused: subdiv_offsets
import tensorflow.compat.v1 as tf


def replicated_step(devices, x, rate):
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
