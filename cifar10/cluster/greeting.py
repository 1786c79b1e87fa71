"""What each task of a cluster tells the others: its cluster and its flags.

A task gives its greeting to its server, where the others read it.
"""
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.cluster.membership import Cluster
from cifar10.cluster.server import ANSWER_SECS, Server
from cifar10.cluster.watch import listed

_GREETING = 'greeting'
_SILENT_SECS = 4  # in which a task that is not stopped answers, also on a busy machine


class Greetings:
    """The greeting of this task, with which those of the others are compared.

    Args:
      cluster: the cluster, and this process's task in it.
      flags: those that must be the same in all tasks, by their names; a task may leave some out.
    """

    def __init__(self, cluster: Cluster, server: Server, flags: Mapping[str, Any]):
        self._cluster = cluster
        self._server = server
        self._own = dict(cluster=[list(cluster.workers), list(cluster.ps)], flags=dict(flags))
        server.write(cluster.name, _GREETING, json.dumps(self._own))
        self._warned = set()  # what has been said of tasks that do not fit

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
        problem = self._problem(name, address, greeting)
        if problem and is_strict:
            raise UsageError(problem)
        if problem and problem not in self._warned:
            self._warned.add(problem)
            say('warning', problem)
        return not problem

    def _problem(self, name, address, greeting):
        """Returns why a task does not fit this one; '' if it does."""
        if greeting['cluster'] != self._own['cluster']:
            workers, ps = (','.join(hosts) or 'none' for hosts in greeting['cluster'])
            return (f'{name} at {address} belongs to another cluster, with the workers {workers} and the ps {ps}; '
                    'correct the hosts, here or there')
        if self._cluster.is_chief:  # which compares the flags of all, and tells them the end
            for flag, value in self._own['flags'].items():
                other = greeting['flags'].get(flag, value)
                if other != value:
                    return (f'{name} at {address} has --{flag}={other}, but this task has --{flag}={value}; start all '
                            'tasks with the same flags')
        return ''

    def is_of_cluster(self, name: str, seconds: float) -> bool:
        """Returns whether a task belongs to this cluster; raises an OpError if it does not answer in time."""
        return self._read(name, seconds)['cluster'] == self._own['cluster']

    def answers(self, name: str) -> bool:
        """Returns whether a task answers; a stopped one does not."""
        try:
            return bool(self._read(name, _SILENT_SECS))
        except tf.errors.OpError:
            return False

    def silent(self, peers: Mapping[str, str]) -> str:
        """Returns which peers {name: address} do not answer, as a phrase; '' if all do."""
        with ThreadPoolExecutor(len(peers) or 1) as pool:
            answers = pool.map(self.answers, peers)
        missing = {name: address for (name, address), is_there in zip(peers.items(), answers) if not is_there}
        return f"{listed(missing)} {'does' if len(missing) == 1 else 'do'} not answer" if missing else ''
