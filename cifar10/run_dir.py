"""What lies in a train_dir or an eval_dir, and whose it is: the one place that knows the file names.

Nothing the user has is deleted: a run that is there is resumed, one that is not this program's is
left alone, and `--restart` deletes only files that are provably of an earlier run.
"""
import dataclasses
import errno
import fcntl
import glob
import json
import os
import re

import tensorflow.compat.v1 as tf

from cifar10.console import UsageError, describe_os_error

CHECKPOINT = 'model.ckpt'
EVENTS_SUFFIX = '.cifar10'
_CONFIG = 'config.json'
_LOCK = 'lock'
_PROGRAM = 'cifar10 multi_gpu_train'
# A run that differs in one of these is another run.
_IDENTITY = ('dataset', 'network', 'seed')


class RunDir:
    """A train_dir that is this process' alone while the object lives.

    Raises:
      UsageError: it cannot be written, another process trains in it, or it holds another run.
    """

    def __init__(self, config):
        self.path = config.train_dir
        make_dir(self.path, '--train_dir')
        self._lock()
        try:
            if config.restart:
                self._restart()
            else:
                _refuse_another_run(config, read_config(self.path))
                _refuse_unknown_files(self.path)
        except BaseException:
            self.close()
            raise

    def _lock(self):
        # A regular file opened for writing: NFS keeps such a lock on its server, for all machines, where one on a
        # directory is known to this machine alone. The file is never removed: a process could then lock the old
        # one and another the new.
        path = os.path.join(self.path, _LOCK)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):  # the second by NFS
                self.close()
                raise UsageError('another process is training in --train_dir=%s; wait for it, or use another '
                                 '--train_dir' % self.path) from None
            print('warning: %s cannot be locked (%s); make sure that no other process trains in this --train_dir'
                  % (path, error.strerror))

    def close(self):
        """Lets other processes train here."""
        os.close(self._descriptor)

    def _restart(self):
        """Deletes the files of an earlier run of this program, having said so."""
        if not os.path.exists(os.path.join(self.path, _CONFIG)):
            if checkpoints(self.path):
                raise UsageError('--restart: %s holds checkpoints, but no %s of this program, so they are not deleted; '
                                 'use another --train_dir' % (self.path, _CONFIG))
            return
        read_config(self.path)
        foreign = [prefix for prefix in checkpoints(self.path) if not is_ours(prefix)]
        if foreign:
            raise UsageError('--restart: %s was not written by this program, so it is not deleted; '
                             'use another --train_dir' % foreign[0])
        names = [name for name in sorted(os.listdir(self.path)) if _OWN_FILES.fullmatch(name)]
        print('restart    deleting the %d files of the run in %s' % (len(names), self.path))
        # The configuration goes last: while it is there, what remains is known to be ours.
        for name in sorted(names, key=lambda name: name == _CONFIG):
            os.remove(os.path.join(self.path, name))

    def write_config(self, config):
        """Writes the run's settings, atomically."""
        temporary = os.path.join(self.path, _CONFIG + '.part')
        with open(temporary, 'w') as stream:
            stream.write(describe(config) + '\n')
        os.replace(temporary, os.path.join(self.path, _CONFIG))
        for name in os.listdir(self.path):
            if '.tempstate' in name and _OWN_FILES.fullmatch(name):
                os.remove(os.path.join(self.path, name))  # of a save that was killed


_OWN_FILES = re.compile(r'%s-\d+\.(index|meta|data-\d{5}-of-\d{5})(\.tempstate\d+)?|checkpoint|checkpoint\.tmp\w+'
                        r'|events\.out\.tfevents\..*%s|%s(\.part)?|trace-\d+-\d+\.json'
                        % (re.escape(CHECKPOINT), re.escape(EVENTS_SUFFIX), re.escape(_CONFIG)))


def describe(config):
    """Returns the settings of a run as JSON text; the data is found from any working directory."""
    settings = dict(dataclasses.asdict(config), data_dir=os.path.abspath(config.data_dir))
    return json.dumps(dict(program=_PROGRAM, **settings), indent=2)


def read_config(train_dir):
    """Returns the settings of the run in train_dir as a dict, or None where there are none.

    Raises:
      UsageError: the file cannot be read, or is another program's.
    """
    path = os.path.join(train_dir, _CONFIG)
    try:
        with open(path) as stream:
            settings = json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError('%s cannot be read (%s); use another directory' % (path, error)) from error
    if not isinstance(settings, dict) or settings.pop('program', None) != _PROGRAM:
        raise UsageError('%s is not of this program; use another directory' % path)
    return settings


def _refuse_another_run(config, settings):
    differing = [name for name in _IDENTITY if settings and settings.get(name) != getattr(config, name)]
    if differing:
        difference = ', '.join('%s=%s (now %s)' % (name, settings.get(name), getattr(config, name))
                               for name in differing)
        raise UsageError('--train_dir=%s holds a run with %s; use another --train_dir, or --restart to delete that run'
                         % (config.train_dir, difference))


def _refuse_unknown_files(train_dir):
    """Refuses a directory without settings whose checkpoints cannot be read: whose they are cannot be seen."""
    if not os.path.exists(os.path.join(train_dir, _CONFIG)):
        for prefix in checkpoints(train_dir):
            try:
                tf.train.load_checkpoint(prefix)
            except Exception as error:  # of any type: the reader translates some of its errors and not others
                raise UsageError('%s cannot be read, and there is no %s beside it; use another --train_dir'
                                 % (prefix, _CONFIG)) from error


def is_ours(prefix):
    """Returns whether a checkpoint was written by this program; the classic scripts count no examples."""
    try:
        return tf.train.load_checkpoint(prefix).has_tensor('examples_seen')
    except Exception:
        return True  # damaged since: a run does not begin beside one that cannot be read


def checkpoints(directory):
    """Returns the prefixes of the checkpoints in a directory, oldest step first."""
    found = glob.glob(os.path.join(glob.escape(directory), CHECKPOINT + '-*.index'))
    prefixes = [path[:-len('.index')] for path in found]
    return sorted((prefix for prefix in prefixes if prefix.rsplit('-', 1)[1].isdigit()), key=step_of)


def step_of(prefix):
    """Returns the step in a checkpoint's name."""
    return int(prefix.rsplit('-', 1)[1])


def make_dir(path, flag):
    """Makes a directory, parents included, unless it is there; a UsageError names the flag."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        reason = 'it is not a directory' if os.path.exists(path) else describe_os_error(error)
        raise UsageError('%s=%s cannot be used: %s; use another directory' % (flag, path, reason)) from error
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise UsageError('%s=%s cannot be read and written; use another directory' % (flag, path))


def check_eval_dir(path, checkpoint_dir):
    """Makes an eval_dir; refuses one that holds or gets checkpoints, where TensorBoard would mix the two."""
    make_dir(path, '--eval_dir')
    if os.path.realpath(path) == os.path.realpath(checkpoint_dir):
        raise UsageError('--eval_dir=%s is --checkpoint_dir; use a directory of its own' % path)
    if checkpoints(path) or os.path.exists(os.path.join(path, 'checkpoint')):
        raise UsageError('--eval_dir=%s holds checkpoints; use a directory of its own' % path)
