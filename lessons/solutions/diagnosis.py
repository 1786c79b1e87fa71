"""Solutions of the exercises of lesson 11."""
import numpy as np
import tensorflow.compat.v1 as tf

from lessons import common


def diagnose(run):
    """What has not ended; then the medians of times; then copies, examples, and the length of steps."""
    unfinished = np.isnan(run['computing']).any(0)
    if unfinished.any():
        return 'stopped', int(np.argmax(unfinished))
    computing, waiting = np.median(run['computing'], 0), np.median(run['input'], 0)
    if computing.max() > 1.5 * np.median(computing):
        return 'slow_tower', int(np.argmax(computing))
    if np.median(waiting) > np.median(computing):
        return 'slow_input', None
    # A copy differs if most of the others do not have its bits.
    copies = run['copies']
    equal = (copies[:, :, None] == copies[:, None]).sum(2)  # [U, K, variables]: how many copies have the number
    odd = (2 * equal <= copies.shape[1]).any((0, 2))
    if odd.sum() > 1:
        return 'not_shared', None
    if odd.any():
        return 'flipped_bit', int(np.argmax(odd))
    if any(len(np.unique(numbers)) < numbers.size for numbers in run['examples']):
        return 'same_batch', None
    ratio = np.linalg.norm(run['moved'][0]) / np.linalg.norm(run['right'][0])
    return 'sum' if ratio > 1.5 else 'small_rate' if ratio < 0.75 else 'none', None


def is_right(build):
    """One step against a value computed by hand, the number of variables, and the devices, for each K."""
    x = np.array([1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048], np.float32)
    for count in (1, 2, 3, 4):
        devices = [f'/cpu:{k}' for k in range(count)]
        with tf.Graph().as_default(), common.session(devices) as session:
            losses, update = build(devices, x, 0.1)
            variables = tf.trainable_variables()
            session.run(tf.global_variables_initializer())
            before, _ = session.run([losses, update])
            after = session.run(variables)
        if len(after) != 1 or not np.allclose(after[0], 0.1 * 2 * x.mean()):
            return False
        if [loss.device for loss in losses] != [f'/device:CPU:{k}' for k in range(count)]:
            return False
        if not np.allclose(before, np.square(x).reshape(count, -1).mean(1)):
            return False
    return True
