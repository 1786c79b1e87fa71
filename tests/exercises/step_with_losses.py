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
    'after_the_reads': (
        ' = []', ', values = [], []',
        'value = read(k)',
        'value = read(k)\n'
        'values.append(value)',
        'control_dependencies(losses)', 'control_dependencies(values)'),
}


mistakes_in_after_the_losses = {
    'all_towers_on_one_device': (
        'the loss of tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'no_barrier': (
        'towers that read 0.2 s late, the losses fetched with the update are',
        ', tf.control_dependencies(losses)', ''),
    'sum': ('the weight afterwards is 0.6; 0.8 is right', ' / len(devices)', ''),
    'update_made_outside': (
        'because nothing orders them',
        "with tf.device('/cpu:0'), tf.control_dependencies(losses):\n"
        '    return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))\n'
        'with tf.control_dependencies(losses):\n'
        '    return losses, tf.group(update)'),
}
