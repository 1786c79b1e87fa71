"""A task's greeting: its cluster, its flags and digests of its training data. The other tasks compare it with theirs.

A task gives its greeting to its server, where the other tasks read it.
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
_SILENT_SECS = 4  # in which a task that is not stopped answers, also on a busy machine


class Greetings:
    """The greeting of this task, with which the greetings of the other tasks are compared.

    The chief's greeting has digests of its files. A worker that has read it greets again, with digests of its own files
    at the same paths.

    Args:
      cluster: the cluster, and this process's task in it.
      flags: flags that must be the same in all tasks, by their names; a task may leave some out.
      files: paths of the chief's training data.
    """

    def __init__(self, cluster: Cluster, server: Server, flags: Mapping[str, Any], files: Iterable[str]):
        self._cluster = cluster
        self._server = server
        self._own = dict(cluster=[list(cluster.workers), list(cluster.ps)], flags=dict(flags), files={})
        self._warned = set()  # warnings about tasks that do not fit
        self._greet(files if cluster.is_chief else ())

    def _greet(self, files):
        self._own['files'] = _digests(files)
        self._server.write(self._cluster.name, _GREETING, json.dumps(self._own))

    def _read(self, name, seconds=ANSWER_SECS):
        """Returns the greeting of a task; raises an OpError if it does not answer in time, or has none yet."""
        return json.loads(self._server.read(name, _GREETING, seconds))

    def accepts(self, name: str, address: str, is_strict: bool) -> bool:
        """Returns whether a task answers and fits this one.

        Args:
          name: of the task: 'worker 1'.
          is_strict: whether a UsageError is raised for one that does not fit. Otherwise a warning is printed once, and
            another may replace it.
        """
        try:
            greeting = self._read(name)
        except tf.errors.OpError:  # it may not have said anything of itself yet
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
        """Returns why a task does not fit this one; '' if it does."""
        if greeting['cluster'] != self._own['cluster']:
            workers, ps = (','.join(hosts) or 'none' for hosts in greeting['cluster'])
            return (f'{name} at {address} belongs to another cluster, with the workers {workers} and the ps {ps}; '
                    'correct the hosts, here or there')
        if not self._cluster.is_chief:  # which compares the flags and files of all, and tells them the end
            return ''
        for flag, value in self._own['flags'].items():
            other = greeting['flags'].get(flag, value)
            if other != value:
                return (f'{name} at {address} has --{flag}={other}, but this task has --{flag}={value}; start all '
                        'tasks with the same flags')
        for path, digest in greeting['files'].items():
            if digest is None:
                return (f"{name} at {address} cannot read {path}, which the run trains on; copy the chief's --data_dir "
                        'there')
            if digest != self._own['files'].get(path):
                return (f"{name} at {address}: its {path} differs from the chief's; copy the chief's --data_dir there")
        return ''

    def answers(self, name: str) -> bool:
        """Returns whether a task answers; a stopped one does not."""
        try:
            return bool(self._read(name, _SILENT_SECS))
        except tf.errors.OpError:
            return False

    def silent(self, peers: Mapping[str, str]) -> str:
        """Returns which peers {name: address} do not answer, as a phrase; '' if all do."""
        missing = wait_for(peers, 0, lambda name, address: self.answers(name), announce=False)
        return f"{listed(missing)} {'does' if len(missing) == 1 else 'do'} not answer" if missing else ''


def _digests(paths):
    """Returns the SHA-256 of files by their paths; None for a file that cannot be read."""
    digests = dict.fromkeys(paths)
    for path in digests:
        with contextlib.suppress(OSError):
            digests[path] = sha256(path)
    return digests
