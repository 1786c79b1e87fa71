"""Answers to build_step."""
import tensorflow.compat.v1 as tf

from cifar10.parallel.towers import average_gradients, build_towers


def accepted_gradient_by_hand_and_barrier(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean((weight - share) ** 2))
            gradients.append(tf.reduce_mean(2 * (weight - share)))
    with tf.control_dependencies(losses + gradients):
        return losses, tf.group([weight.assign_sub(rate / len(devices) * gradient) for gradient in gradients])


def accepted_one_loop(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.get_variable('weight', initializer=0.0)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[-1], weight)
    with tf.device('/cpu:0'):
        update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
    return losses, update


mistakes_in_one_loop = {
    'all_towers_on_one_device': (
        'the loss of tower 1 is on /device:CPU:0; /cpu:1 is right',
        'tf.device(device)', 'tf.device(devices[0])'),
    'applied_twice': (
        'afterwards weight is 1.2; 0.6 is right',
        'update = weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'mean = tf.add_n(gradients) / len(devices)\n'
        'update = tf.group(weight.assign_sub(rate * mean), weight.assign_sub(rate * mean))'),
    'losses_read_late': (
        'because nothing orders them',
        'return losses, update',
        'for k, device in enumerate(devices):\n'
        '    with tf.device(device):\n'
        '        losses[k] = tf.identity(losses[k] + 0 * weight)\n'
        'return losses, update'),
    'no_barrier': (
        'because nothing orders them',
        'weight.assign_sub(rate * tf.add_n(gradients) / len(devices))',
        'tf.group([weight.assign_sub(rate / len(devices) * gradient) for gradient in gradients])'),
    'no_device': (
        'the loss of tower 0 is on no device that is named; /cpu:0 is right',
        'tf.device(device)', "tf.name_scope('tower')"),
    'none': ('it returns None; (losses, update) is right', 'return losses, update', 'print(losses, update)'),
    'off_by_one': ('the loss of tower 0 is 1; 2.5 is right', 'weight - share', 'weight - share[:-1]'),
    'one_loss': ('it returns 1 loss; 2 is right', 'return losses', 'return [tf.add_n(losses) / len(losses)]'),
    'same_share_for_all': (
        'for 2 devices and the rate 0.1 and x = [1, 2, 3, 6] in step 1, the loss of tower 1 is 2.5; 22.5 is right',
        'tf.split(x, len(devices))', '[tf.split(x, len(devices))[0]] * len(devices)'),
    'step_when_it_is_built': ('afterwards weight is 0; 0.6 is right', 'losses, update', 'losses, tf.no_op()'),
    'sum': ('afterwards weight is 1.2; 0.6 is right', ' / len(devices)', ''),
    'tower_left_out': ('because nothing orders them', 'tf.add_n(gradients)', 'tf.add_n(gradients[:-1] or gradients)'),
    'two_towers_only': (
        'the loss of tower 0 is 2.5; 12.5 is right',
        'devices, tf.split(x, len(devices))', 'devices[:2], tf.split(x, 2)',
        '/ len(devices)', '/ 2'),
    'values': ('where an operation or a tensor of the graph is right', 'losses, update', 'losses, rate'),
    'weight_on_the_last_device': (
        'weight is on /device:CPU:1; /cpu:0 is right',
        "with tf.device('/cpu:0'):\n"
        '    weight',
        'with tf.device(devices[-1]):\n'
        '    weight'),
    'whole_batch_for_each': ('the loss of tower 0 is 12.5; 2.5 is right', 'weight - share', 'weight - x'),
    'wrong_sign': ('afterwards weight is -0.6; 0.6 is right', 'weight.assign_sub', 'weight.assign_add'),
}


def accepted_optimizer(devices, x, rate):
    with tf.device('/cpu:0'):
        weight = tf.Variable(0.0, name='weight')
        optimizer = tf.train.GradientDescentOptimizer(rate)
    losses, gradients = [], []
    for device, share in zip(devices, tf.split(x, len(devices))):
        with tf.device(device):
            losses.append(tf.reduce_mean(tf.math.squared_difference(weight, share)))
        gradients += [gradient for gradient, _ in optimizer.compute_gradients(losses[-1])]
    return losses, optimizer.apply_gradients([(tf.add_n(gradients) / len(devices), weight)])


def accepted_package(devices, x, rate):
    shares = tf.split(x, len(devices))
    optimizer = tf.train.GradientDescentOptimizer(rate)

    def tower(k, scope):
        with tf.device('/cpu:0'):
            weight = tf.get_variable('weight', initializer=0.0)
        loss = tf.reduce_mean(tf.square(weight - shares[k]))
        return loss, optimizer.compute_gradients(loss)

    losses, gradients = zip(*build_towers(devices, tower))
    return losses, optimizer.apply_gradients(average_gradients(gradients))


def accepted_reuse_in_scopes(devices, x, rate):
    losses, gradients = [], []
    for k, device in enumerate(devices):
        with tf.device(device), tf.name_scope(f'tower_{k}'), tf.variable_scope('model', reuse=k > 0):
            with tf.device('/cpu:0'):
                weight = tf.get_variable('weight', [], initializer=tf.zeros_initializer())
            size = int(x.shape[0]) // len(devices)
            losses.append(tf.reduce_mean((weight - x[k * size:(k + 1) * size]) ** 2))
            gradients.append(tf.gradients(losses[k], weight)[0])
    return tuple(losses), weight.assign(weight - rate * tf.reduce_mean(tf.stack(gradients)))


def refused_variable_for_each_tower(devices, x, rate):
    """the graph has 2 trainable variables (tower_0/weight, tower_1/weight); 1 is right"""
    losses, updates = [], []
    for k, share in enumerate(tf.split(x, len(devices))):
        with tf.name_scope(f'tower_{k}'):
            with tf.device('/cpu:0'):
                weight = tf.Variable(0.0, name='weight')
            with tf.device(devices[k]):
                losses.append(tf.reduce_mean(tf.square(weight - share)))
                updates.append(weight.assign_sub(rate * tf.gradients(losses[k], weight)[0]))
    return losses, tf.group(updates)


def refused_variable_scope_without_reuse(devices, x, rate):
    """it raises ValueError in line 10: Variable model/weight already exists"""
    losses, gradients = [], []
    for k, share in enumerate(tf.split(x, len(devices))):
        with tf.device(devices[k]), tf.variable_scope('model'):
            with tf.device('/cpu:0'):
                weight = tf.get_variable('weight', initializer=0.0)
            losses.append(tf.reduce_mean(tf.square(weight - share)))
            gradients += tf.gradients(losses[k], weight)
    return losses, weight.assign_sub(rate * tf.add_n(gradients) / len(devices))
