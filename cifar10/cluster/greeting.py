"""A task's greeting: its cluster, its flags and digests of its training data, which all tasks compare.

A task's server stores its greeting, and the other tasks read it there.
"""
import contextlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.files import sha256
from cifar10.cluster.membership import Cluster
from cifar10.cluster.server import ANSWER_SECS, Server
from cifar10.cluster.watch import listed, wait_for

_GREETING = 'greeting'
_SILENT_SECS = 4  # a running task answers within this time, even on a busy machine


class Greetings:
    """Compares the greetings of other tasks with this task's greeting.

    The chief's greeting has digests of its files. After reading it, a worker greets again, with digests of its own
    files at the same paths.

    Args:
      cluster: the cluster, with this process's task.
      flags: flags that must match in all tasks, by name; a task may leave some out.
      files: paths of the chief's training data.
    """

    def __init__(self, cluster: Cluster, server: Server, flags: Mapping[str, Any], files: Iterable[str]):
        self._cluster = cluster
        self._server = server
        self._own: dict[str, Any] = dict(cluster=[list(cluster.workers), list(cluster.ps)], flags=dict(flags), files={})
        self._warned: set[str] = set()  # warnings about tasks that do not match
        self._greet(files if cluster.is_chief else ())

    def _greet(self, files):
        self._own['files'] = _digests(files)
        self._server.write(self._cluster.name, _GREETING, json.dumps(self._own))

    def _read(self, name, seconds=ANSWER_SECS):
        """Returns the greeting of a task; raises an OpError if the task does not answer in time or has no greeting."""
        return json.loads(self._server.read(name, _GREETING, seconds))

    def accepts(self, name: str, address: str, is_strict: bool) -> bool:
        """Returns whether a task answers and matches this task.

        Args:
          name: the task's name: 'worker 1'.
          is_strict: whether to raise a UsageError for a mismatch. Otherwise a warning is printed once, and another task
            may replace this one.
        """
        try:
            greeting = self._read(name)
        except tf.errors.OpError:  # it may not have a greeting yet
            return False
        if problem := self._problem(name, address, greeting):
            if is_strict:
                raise UsageError(problem)
            if problem not in self._warned:
                self._warned.add(problem)
                say('warning', problem)
            return False
        if self._cluster.is_chief:
            return greeting['files'].keys() == self._own['files'].keys() or name.startswith('ps')
        if self._cluster.job == 'worker' and greeting['files'].keys() != self._own['files'].keys():
            self._greet(greeting['files'])
        return True

    def _problem(self, name, address, greeting):
        """Returns an error message about a task that does not match this task; '' if it matches."""
        if greeting['cluster'] != self._own['cluster']:
            workers, ps = (','.join(hosts) or 'none' for hosts in greeting['cluster'])
            return (f'{name} at {address} belongs to another cluster, with the workers {workers} and the ps {ps}; '
                    'correct the hosts, here or there')
        if not self._cluster.is_chief:  # the chief compares the flags and files of all tasks
            return ''
        for flag, value in self._own['flags'].items():
            peer_value = greeting['flags'].get(flag, value)
            if peer_value != value:
                return (f'{name} at {address} has --{flag}={peer_value}, but this task has --{flag}={value}; start all '
                        'tasks with the same flags')
        for path, digest in greeting['files'].items():
            if digest is None:
                return f"{name} at {address} cannot read {path}; copy the chief's --data_dir there"
            if digest != self._own['files'].get(path):
                return (f"{name} at {address}: its {path} differs from the chief's; copy the chief's --data_dir there")
        return ''

    def answers(self, name: str) -> bool:
        """Returns whether a task answers; a stopped task does not."""
        try:
            return bool(self._read(name, _SILENT_SECS))
        except tf.errors.OpError:
            return False

    def silent(self, peers: Mapping[str, str]) -> str:
        """Returns a phrase about the peers {name: address} that do not answer; '' if all answer."""
        missing = wait_for(peers, 0, lambda name, address: self.answers(name), announce=False)
        return f"{listed(missing)} {'does' if len(missing) == 1 else 'do'} not answer" if missing else ''


def _digests(paths):
    """Returns the SHA-256 of files by path; None for an unreadable file."""
    digests = dict.fromkeys(paths)
    for path in digests:
        with contextlib.suppress(OSError):
            digests[path] = sha256(path)
    return digests
