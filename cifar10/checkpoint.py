"""Checkpoints: writing whole ones, finding the newest that can be read, and restoring it.

Knows variables and files. A checkpoint of the classic tutorial fits too: it has the same variable
names, a global_step in float32, and no count of examples.
"""
import glob
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10 import precision, run_dir
from cifar10.console import RunError, UsageError, reason

_CLASSIC_BATCH = 128  # of the tutorial: a step of its checkpoints stands for so many examples
_RETRY_SECS = 0.5

_named = set()  # damaged checkpoints that this process has named, so that a watching evaluator does so once


def newest(directory):
    """Returns the prefix of the newest checkpoint whose every byte can be read, or None.

    One that cannot (a full disk, a broken copy) is named in a line, once. One that is removed while it is
    being read, because a newer one took its place, is not damaged.
    """
    damaged = set()
    while True:
        prefix = next((each for each in reversed(run_dir.checkpoints(directory)) if each not in damaged), None)
        why = prefix and damage(prefix)
        if why:
            time.sleep(_RETRY_SECS)  # the trainer removes a checkpoint file by file
            if prefix not in run_dir.checkpoints(directory):
                continue
            why = damage(prefix)
        if not why:
            return prefix
        damaged.add(prefix)
        if prefix not in _named:
            _named.add(prefix)
            print('warning: %s cannot be read (%s); looking for the one before it' % (prefix, why))


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
    prefix = newest(directory)
    return 'the newest checkpoint is %s' % prefix if prefix else 'there is no checkpoint yet'


def misfit(prefix, variables):
    """Returns what in a checkpoint does not fit, as a phrase, or None if all does.

    A restore into resource variables does not look at shapes, and what follows is undefined.

    Args:
      prefix: of the checkpoint.
      variables: name in the checkpoint -> variable.
    """
    saved = tf.train.load_checkpoint(prefix).get_variable_to_shape_map()
    for name, variable in sorted(variables.items()):
        if name not in saved:
            return 'has no %s' % name
        if saved[name] != variable.shape.as_list():
            return 'has %s of shape %s instead of %s' % (name, saved[name], variable.shape.as_list())
    return None


class Checkpoints:
    """Writes and restores all global variables of a graph; make it when they are all there.

    Attributes:
      last: the prefix that was saved or restored last, or None.
    """

    def __init__(self, directory, global_step, examples_seen, max_to_keep):
        self.last = None
        self._directory, self._max_to_keep = directory, max_to_keep
        self._counters = (global_step, examples_seen)
        self._variables = variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables, max_to_keep=max_to_keep, save_relative_paths=True)
            # Not in every checkpoint of the network: the tutorial's counts no examples, fp32's scales no loss.
            self._extras = [v for v in variables if v is examples_seen or v.op.name in precision.LOSS_SCALE]
            self._common = tf.train.Saver([v for v in variables if v is not global_step and v not in self._extras],
                                          name='restore_common')
            floats = [v.read_value() for v in variables if v.dtype.base_dtype.is_floating]
            self._finite = tf.reduce_all([tf.reduce_all(tf.is_finite(value)) for value in floats])

    def check(self):
        """Raises a UsageError if the newest checkpoint is not of this graph, before anything is written."""
        prefix = newest(self._directory)
        if prefix is None:
            return
        variables = {variable.op.name: variable for variable in self._variables}
        for variable in self._extras:
            del variables[variable.op.name]
        found = misfit(prefix, variables)
        if found:
            raise UsageError('%s %s: it is of another network; use another --train_dir' % (prefix, found))

    def restore(self, session):
        """Restores the newest readable checkpoint, if there is one, and keeps count of the older ones."""
        prefix = newest(self._directory)
        if prefix is None:
            return
        reader = tf.train.load_checkpoint(prefix)
        if all(reader.has_tensor(variable.op.name) for variable in self._extras):
            self._saver.restore(session, prefix)
        else:
            self._common.restore(session, prefix)
            step, (global_step, examples_seen) = saved_step(prefix), self._counters
            seen = reader.get_tensor(examples_seen.op.name) if reader.has_tensor(examples_seen.op.name) else (
                step * _CLASSIC_BATCH)
            for variable, value in ((global_step, step), (examples_seen, seen)):
                variable.load(np.int64(value), session)
        self.last = prefix
        self._go_on_rotating()

    def _go_on_rotating(self):
        """Tells the saver of earlier processes' checkpoints, lest it keep them for ever; others' it never deletes."""
        ours = [each for each in run_dir.checkpoints(self._directory)
                if run_dir.step_of(each) <= run_dir.step_of(self.last) and run_dir.is_ours(each)]
        surplus = len(ours) - self._max_to_keep if self._max_to_keep else 0
        for each in ours[:max(surplus, 0)]:
            tf.train.remove_checkpoint(each)
        self._saver.recover_last_checkpoints(ours[max(surplus, 0):])

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
            self.last = self._saver.save(session, prefix, step, write_meta_graph=False)
        except (tf.errors.AbortedError, tf.errors.UnavailableError):
            raise  # a device was lost, from which the session may recover
        except (tf.errors.OpError, OSError) as error:
            for path in glob.glob('%s-%d.*' % (glob.escape(prefix), step)):
                os.remove(path)  # half a checkpoint; the disk may be full of it
            raise RunError('step %d: the checkpoint cannot be written (%s); %s' % (
                step, reason(error), remainder(self._directory))) from error

