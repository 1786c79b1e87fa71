"""Finds, verifies, reads, writes, pins and removes checkpoints. Reads TensorFlow's CIFAR-10 tutorial's, too.

The tutorial's variables have the same names, but its global_step is a float32. Its checkpoints count no examples and
store no settings. An evaluation or a warm start can use them, but no run can resume from them.
"""
import contextlib
import errno
import hashlib
import json
import os
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base import files
from cifar10.base.activity import doing
from cifar10.base.console import Output, say
from cifar10.base.errors import RunError, UsageError, did_you_mean, reason
from cifar10.base.graphs import LOSS_SCALE, LOST, OUTER_STATE
from cifar10.run import metrics
from cifar10.run.best import is_better
from cifar10.run.folder import (
    BEST,
    CHECKPOINT,
    LIST,
    Folder,
    best_of,
    exists,
    glance,
    is_unfinished,
    parts,
    prefix_of,
    step_of,
    step_without_index,
    unfinished_prefix_of,
    written_by,
)
from cifar10.run.takeover import TrainDir

_RETRY_SECS = 0.5

# Corrupt checkpoints that this process has reported, with the cause. An evaluator that polls for checkpoints reports
# each corrupt one only once.
_reported: dict[str, str] = {}


class Saved(NamedTuple):
    """A checkpoint in memory: the prefix of its files, and its variables by name."""
    prefix: str
    values: dict[str, np.ndarray]

    @property
    def step(self) -> int:
        """Its global_step, which the checkpoints of the tutorial's oldest script for one GPU do not have."""
        if tf.GraphKeys.GLOBAL_STEP not in self.values:
            raise UsageError(f'{self.prefix} has no global_step, so its step is unknown; start a new run from it with '
                             f'--warm_start={self.prefix} in another --train_dir')
        return int(self.values[tf.GraphKeys.GLOBAL_STEP])

    def misfit(self, variables: Mapping[str, tf.Variable]) -> str | None:
        """Returns a phrase for the first variable, by its checkpoint name, that does not fit; None if all fit.

        The checkpoint may lack the loss scale (of fp32) and the state of `local`.
        """
        for name, variable in sorted(variables.items()):
            if name not in self.values:
                if name not in LOSS_SCALE and name.rpartition('/')[2] not in OUTER_STATE:
                    return f'has no {name}'
            elif list(np.shape(self.values[name])) != variable.shape.as_list():
                shape = list(np.shape(self.values[name]))
                return f'has {name} of shape {shape} instead of {variable.shape.as_list()}'
        return None


def newest(look: Callable[[], Folder]) -> Saved | None:
    """Returns the newest completely readable checkpoint, or None.

    Reports each corrupt checkpoint (a full disk, a broken copy) once, in a line. A trainer may remove an old
    checkpoint during the read. That checkpoint is not corrupt, so the function calls `look` again.
    """
    corrupt, folder = set(), look()
    while candidates := [prefix for prefix in folder.checkpoints if prefix not in corrupt]:
        prefix = candidates[-1]
        try:
            return read(prefix)
        except Unreadable:
            time.sleep(_RETRY_SECS)  # the trainer may be removing it, file by file
        folder = look()
        if prefix in folder.checkpoints and (cause := corruption(prefix)):
            corrupt.add(prefix)
            if prefix not in _reported:
                _reported[prefix] = cause
                then = '; looking for an earlier one' if candidates[1:] else ''
                say('warning', f'{prefix} cannot be read ({cause}){then}')
    return None


def none_readable(folder: Folder) -> str:
    """Returns a phrase that says why no checkpoint in a folder is readable."""
    causes = [f' ({_reported[prefix]})' for prefix in folder.checkpoints if prefix in _reported]
    return f"no checkpoint in {folder.given} can be read{''.join(causes[-1:])}"


def named(flag: str, given: str, folders: str = '') -> Saved:
    """Returns the checkpoint that the user names; raises a UsageError if it is not completely readable.

    Args:
      given: the flag's value: the prefix, the index, or DIR/best for the best checkpoint in DIR.
      folders: for the message, if a directory also stands for its newest checkpoint.
    """
    prefix = given.removesuffix('.index')
    folder, name = (given, '') if os.path.isdir(given) else os.path.split(prefix)
    if name == 'best' and not exists(prefix):
        if (best := best_of(folder)) is None:
            raise UsageError(f'--{flag}={given}: there is no {os.path.join(folder, BEST)}, which --keep_best '
                             f'writes after the first evaluation; give {folders}the prefix of a checkpoint')
        prefix = prefix_of(folder, best['step'])
    if exists(prefix):
        try:
            return read(prefix)
        except Unreadable as error:
            raise UsageError(f'--{flag}={given} cannot be read ({error}); give another checkpoint') from error
    if folders and not name and (in_folder := newest(lambda: glance(given, flag))):
        return in_folder
    found = glance(folder, flag)
    if name == LIST and name in found.files:
        raise UsageError(f'--{flag}={given} is only a list of checkpoints; give {folders}the prefix of one')
    is_half = any(each.startswith(f'{name}.data-') for each in found.files)
    why = f', because {prefix}.index is missing' if is_half else did_you_mean(
        name, ['best'] * (BEST in found.files))
    others = {os.path.join(found.path, each.removesuffix('.index')) for each in found.files if each.endswith('.index')}
    readable = [each for each in sorted(others.difference(found.checkpoints)) if corruption(each) is None]
    example = [os.path.join(folder, f'{CHECKPOINT}-1000'), *readable, *found.checkpoints][-1]
    raise UsageError(f'--{flag}={given}: there is no such checkpoint{why}; give {folders}the prefix of one, such as '
                     f'{example}')


class Unreadable(OSError):
    """Raised for an unreadable checkpoint; the message is a phrase with the cause."""


def read(prefix: str) -> Saved:
    """Reads a checkpoint and verifies its lengths and checksums; raises an Unreadable if the read fails."""
    try:
        opened = reader(prefix)
        values = {name: opened.get_tensor(name) for name in opened.get_variable_to_shape_map()}
    except Exception as error:  # any type: the reader translates only some of its errors
        cause = reason(error)
        missing = '; copy the missing files' if cause.endswith(os.strerror(errno.ENOENT)) else ''
        raise Unreadable(cause + missing) from error
    if tf.GraphKeys.GLOBAL_STEP in values:
        values[tf.GraphKeys.GLOBAL_STEP] = np.int64(values[tf.GraphKeys.GLOBAL_STEP])  # a float32 in the tutorial's
    return Saved(prefix, values)


def corruption(prefix: str) -> str | None:
    """Returns a phrase for why a checkpoint is unreadable, or None if it is readable."""
    try:
        read(prefix)
    except Unreadable as error:
        return str(error)
    return None


def digest(prefix: str) -> str:
    """Returns the `digest_of` the variables in a checkpoint; raises an Unreadable if it cannot be read."""
    return digest_of(read(prefix).values)


def digest_of(values: Mapping[str, np.ndarray]) -> str:
    """Returns the hexadecimal SHA-256 of variables, including types and shapes, independent of their order."""
    sha256 = hashlib.sha256()
    for name, value in sorted(values.items()):
        array = np.asarray(value)
        sha256.update(f'{name} {array.dtype} {list(array.shape)}\n'.encode())
        sha256.update(array.tobytes())
    return sha256.hexdigest()


def reader(prefix: str) -> Any:
    """Returns TensorFlow's reader for the files of a checkpoint.

    Unlike `tf.train.load_checkpoint`, it does not read the newest checkpoint in a folder of the same name. TensorFlow
    treats the folder's path as a pattern. For special characters, it gets the folder's descriptor instead.
    """
    folder, name = os.path.split(prefix)
    if not set(folder) & set('*?[]\\'):
        return tf.train.NewCheckpointReader(prefix)
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        opened = tf.train.NewCheckpointReader(f'/proc/self/fd/{descriptor}/{name}')
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(opened, os.close, descriptor)  # it opens the data when they are read
    return opened


def describe_latest(train_dir: str) -> str:
    """Returns a phrase that names the checkpoint to resume from."""
    found = newest(lambda: glance(train_dir))
    return f'the newest checkpoint is {found.prefix}' if found else 'there is no checkpoint yet'


def publish(train_dir: str, step: int) -> str:
    """Gives the files of a complete checkpoint their final names, the index last; returns its prefix.

    A checkpoint exists once its index does. By then the checkpoint is on disk, with the records and summaries up to
    its step, so even an immediate power failure loses none of them.
    """
    prefix, unfinished = prefix_of(train_dir, step), unfinished_prefix_of(train_dir, step)
    written = parts(unfinished)
    files.sync(*written_by(train_dir, os.getpid()), *written)
    for part in written:
        os.rename(part, prefix + part.removeprefix(unfinished))
        files.sync(train_dir)
    return prefix


def note_best(train_dir: str, evaluation: Mapping[str, Any]) -> None:
    """Writes the step of a checkpoint on disk and the figures of its evaluation to best.json."""
    figures = {name: value for name, value in evaluation.items() if name not in ('kind', 'time')}
    files.replace(os.path.join(train_dir, BEST), json.dumps(figures, indent=2) + '\n')


def remove(prefix: str) -> None:
    """Removes the files of a checkpoint, its index first: without an index it is no checkpoint."""
    for path in reversed(parts(prefix)):
        os.remove(path)


def remove_abandoned(folder: Folder) -> None:
    """Removes the leftovers of this program's killed processes from the folder of a run.

    Leftovers are unfinished files, and data files of recorded checkpoints without an index. A kill during a write or
    a removal leaves them.
    """
    missing = folder.recorded - set(map(step_of, folder.checkpoints))
    for name in folder.files:
        if is_unfinished(name) or step_without_index(name) in missing:
            os.remove(os.path.join(folder.path, name))


def tidy(folder: Folder, step: int, max_to_keep: int, figure: str | None) -> None:
    """Cleans up the locked directory of a run that has ended at a step, in case a kill interrupted its end.

    Keeps `max_to_keep` checkpoints, or the run's own `max_to_keep` if that is larger. Checkpoints of later steps
    are unreadable and do not count. `figure` is as for `find_best`.
    """
    remove_abandoned(folder)
    pinned = find_best(folder.path, folder.best, folder.evaluations, step, figure)
    kept = {max_to_keep, folder.record.settings.reports.max_to_keep if folder.record else max_to_keep}
    prefixes = [prefix for prefix in folder.checkpoints if step_of(prefix) <= step]
    rotate(folder.path, prefixes, folder.recorded, 0 if 0 in kept else max(kept), pinned)


def rotate(train_dir: str, prefixes: Sequence[str], recorded: Collection[int], max_to_keep: int,
           pinned: Mapping[str, Any] | None = None) -> None:
    """Removes all but the newest checkpoints, and only checkpoints that the run has recorded.

    Writes the list that `tf.train.latest_checkpoint` reads, newest last. If all checkpoints stay, it lists only the
    newest, like TensorFlow's Saver.

    Args:
      prefixes: oldest first; at least one.
      recorded: the steps of the run's own checkpoints.
      max_to_keep: number of checkpoints to keep; 0: all.
      pinned: contents of best.json; its checkpoint stays.
    """
    names = [os.path.basename(prefix) for prefix in (prefixes[-max_to_keep:] if max_to_keep else prefixes[-1:])]
    # The text format of a CheckpointState (tensorflow/core/protobuf/checkpoint_state.proto).
    text = f'model_checkpoint_path: "{names[-1]}"\n' + ''.join(
        f'all_model_checkpoint_paths: "{name}"\n' for name in names)
    files.replace(os.path.join(train_dir, LIST), text)
    for prefix in prefixes[:-max_to_keep] if max_to_keep else ():
        if step_of(prefix) in recorded and not (pinned and step_of(prefix) == pinned['step']):
            remove(prefix)


def find_best(train_dir: str, noted: Mapping[str, Any] | None, evaluations: Sequence[Mapping[str, Any]], step: int,
              figure: str | None) -> Mapping[str, Any] | None:
    """Makes best.json name the best checkpoint up to a step; returns its new contents, or None without one.

    The records decide, because a kill may come between a better checkpoint and best.json. Checkpoints of later steps
    are unreadable, because otherwise the run would resume from them. The run repeats these steps.

    Args:
      noted: contents of best.json.
      figure: the figure that ranks evaluations; None in a run that does not keep its best checkpoint.
    """
    def is_there(evaluation):
        return evaluation['step'] <= step and exists(prefix_of(train_dir, evaluation['step']))
    best = noted if noted and is_there(noted) else None
    for record in evaluations:
        is_later = not best or record['step'] > best['step']
        if figure and is_later and is_better(record, best, figure) and is_there(record):
            best = record
    if best and best is not noted:
        note_best(train_dir, best)
    elif noted and not best:
        os.remove(os.path.join(train_dir, BEST))
        files.sync(train_dir)
    return best


class Checkpoints:
    """Saves all global variables of a graph and restores checkpoints; create it after all variables.

    Args:
      start: the checkpoint to restore first, or None.
      max_to_keep: number of newest checkpoints to keep; 0: all.

    Attributes:
      last: the last saved or restored prefix; '' before.
      best: contents of best.json, the step and the figures of the checkpoint that rotation keeps; or None.
    """

    def __init__(self, directory: TrainDir, start: Saved | None, folder: Folder, max_to_keep: int,
                 log: metrics.Log):
        self.last = ''
        self._saved_step: int | None = None  # the last saved or restored step
        self._passing = ''  # the last saved prefix, if the next checkpoint replaces it
        self._directory = directory
        self._start = start
        self._recorded = set(folder.recorded)
        self.best = folder.best
        self._max_to_keep = max_to_keep
        self._log = log
        variables = tf.global_variables()
        with tf.device('/cpu:0'), tf.name_scope('checkpoint'):
            self._saver = tf.train.Saver(variables)
            self._step, = (v.read_value() for v in variables if v.op.name == tf.GraphKeys.GLOBAL_STEP)
            self._values = {v.op.name: v.read_value() for v in variables}

    def resume(self) -> dict[str, np.ndarray] | None:
        """Returns the variables to resume from, or None without a checkpoint."""
        self._directory.refuse_another_folder()
        # The first session gets the checkpoint chosen at the start. A session after a device loss gets the newest;
        # otherwise the run would repeat all steps of this process.
        found, self._start = self._start or newest(lambda: glance(self._directory.path)), None
        if self.last and not found:
            raise RunError(f'the checkpoints in {self._directory.path} cannot be read any more (the newest was '
                           f'{self.last}); check the disk, then start again')
        self.last = found.prefix if found else self.last
        self._saved_step = found.step if found else None
        return found.values if found else None

    def save(self, session: tf.Session, passing: bool = False, best: Mapping[str, Any] | None = None) -> None:
        """Writes a checkpoint, unless this step was saved or restored last, and rotates older checkpoints.

        TensorFlow's Saver only writes the files. It would list and rotate checkpoints before anything is on disk, so
        a power failure could destroy the new and the older checkpoints.

        Args:
          passing: whether to remove this checkpoint once the next one is written.
          best: the record of this step's evaluation, if it is the best so far.
        """
        step = int(session.run(self._step))
        if step == self._saved_step:
            return
        unfinished, train_dir = unfinished_prefix_of(self._directory.path, step), self._directory.path
        with self._writing(step):
            try:
                self._saver.save(session, unfinished, write_meta_graph=False, write_state=False)
                # The record comes first, so that it reaches the disk with the checkpoint. A resume drops a record
                # without a checkpoint.
                record = self._log.write(metrics.CHECKPOINT, step, told=False,
                                         sha256=self._proved(session, unfinished))
                self._directory.refuse_another_folder()
                self.last = publish(train_dir, step)
            except (tf.errors.OpError, OSError):
                remove(unfinished)  # it may fill the disk
                remove(prefix_of(train_dir, step))
                raise
            self._saved_step = step
            self._recorded.add(step)
            if best:
                note_best(train_dir, best)
                self.best = best
            # A newer one is corrupt, or the run would have resumed from it.
            older = [prefix for prefix in glance(train_dir).checkpoints
                     if step_of(prefix) <= step and prefix != self._passing]
            rotate(train_dir, older, self._recorded, self._max_to_keep, self.best)
            if self._passing:
                remove(self._passing)
            self._passing = self.last if passing else ''
        Output.current.record(record)

    def _proved(self, session, prefix):
        """Returns the digest of a checkpoint; raises an OSError if its variables differ from memory."""
        found = digest(prefix)
        if found != digest_of(session.run(self._values)):
            raise OSError('the written file differs from memory')
        return found

    @contextlib.contextmanager
    def _writing(self, step):
        """Context that turns write errors into RunErrors, unless a device was lost."""
        try:
            with doing('save'):
                yield
        except LOST:
            raise  # training then restarts
        except (tf.errors.OpError, OSError) as error:
            raise RunError(f'step {step}: the checkpoint cannot be written ({reason(error)}); remove the cause, and '
                           f'start again; {describe_latest(self._directory.path)}') from error
