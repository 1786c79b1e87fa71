"""Checkpoints: writing whole ones, finding the newest that can be read, and restoring it.

Knows variables and files. A checkpoint of the classic tutorial fits too: it has the same variable
names, a global_step in float32, and no count of examples.
"""
import glob
import os

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10 import run_dir
from cifar10.console import RunError, reason

_CLASSIC_BATCH = 128  # of the tutorial: a step of its checkpoints stands for so many examples


def newest(directory):
    """Returns the prefix of the newest checkpoint whose every byte can be read, or None.

    One that cannot (a full disk, a broken copy) is named in a line.
    """
    for prefix in reversed(run_dir.checkpoints(directory)):
        reason = damage(prefix)
        if reason is None:
            return prefix
        print('warning: %s cannot be read (%s); looking for the one before it' % (prefix, reason))
    return None


def damage(prefix):
    """Returns why a checkpoint cannot be read, in a line, or None if it can."""
    try:
        reader = tf.train.load_checkpoint(prefix)
        for name in reader.get_variable_to_shape_map():
            reader.get_tensor(name)  # checks lengths and checksums
    except Exception as error:  # of any type: the reader translates some of its errors and not others
        return reason(error)
    return None


def saved_step(prefix):
    """Returns the global_step in a checkpoint as an int; the tutorial's is a float32."""
    return int(tf.train.load_checkpoint(prefix).get_tensor('global_step'))


def remainder(directory):
    """Returns a phrase that says which checkpoint a user can go on from."""
    kept = run_dir.checkpoints(directory)
    return 'the newest checkpoint is %s' % kept[-1] if kept else 'there is no checkpoint yet'


class Checkpoints:
    """Writes and restores all global variables of a graph; make it when they are all there."""

    def __init__(self, directory, global_step, examples_seen, max_to_keep):
        self._directory = directory
        self._counters = (global_step, examples_seen)
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables, max_to_keep=max_to_keep, save_relative_paths=True)
            self._classic = tf.train.Saver([v for v in variables if v is not global_step and v is not examples_seen],
                                           name='restore_classic')
            floats = [v.read_value() for v in variables if v.dtype.base_dtype.is_floating]
            self._finite = tf.reduce_all([tf.reduce_all(tf.is_finite(value)) for value in floats])

    def restore(self, session):
        """Restores the newest readable checkpoint, if there is one, and keeps count of the older ones."""
        prefix = newest(self._directory)
        if prefix is None:
            return
        if tf.train.load_checkpoint(prefix).has_tensor('examples_seen'):
            self._saver.restore(session, prefix)
        else:
            self._classic.restore(session, prefix)
            step = saved_step(prefix)
            for variable, value in zip(self._counters, (step, step * _CLASSIC_BATCH)):
                variable.load(np.int64(value), session)
        # Those up to the restored one: without it, rotation would begin anew with this process.
        self._saver.recover_last_checkpoints(
            [each for each in run_dir.checkpoints(self._directory) if run_dir.step_of(each) <= run_dir.step_of(prefix)])

    def save(self, session, step):
        """Writes a checkpoint named by `step`; it gets its name when it is whole.

        Raises:
          RunError: a variable is not finite, or the disk does not take it.
        """
        if not session.run(self._finite):
            raise RunError('step %d: a variable is no longer finite, so no checkpoint is written; %s'
                           % (step, remainder(self._directory)))
        prefix = os.path.join(self._directory, run_dir.CHECKPOINT)
        try:
            self._saver.save(session, prefix, step, write_meta_graph=False)
        except (tf.errors.OpError, OSError) as error:
            for path in glob.glob('%s-%d.*' % (glob.escape(prefix), step)):
                os.remove(path)  # half a checkpoint; the disk may be full of it
            raise RunError('step %d: the checkpoint cannot be written (%s); %s' % (
                step, reason(error), remainder(self._directory))) from error

