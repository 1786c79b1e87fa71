"""What the tasks of a cluster say of themselves: to which cluster they belong, with which flags, on which devices.

Each has it in a variable of its server, and renews it every second: a server answers even where no Python runs any
more.
"""
import contextlib
import itertools
import json
import multiprocessing.pool
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.cluster.membership import Cluster
from cifar10.cluster.server import ANSWER_SECS, Server, device_of
from cifar10.cluster.watch import listed

RENEW_SECS = 1  # between two greetings, and between two looks whether there is a new one
_SILENT_SECS = 5  # in which a task that lives has renewed its greeting, also on a busy machine
_END_SECS = 10  # that the thread may take to end


class Greetings:
    """The greeting of this task, which a thread renews until `close`, and those of the tasks that were accepted.

    Args:
      cluster: the cluster, and this process's task in it.
      server: of this task.
      flags: those that must be the same in all tasks, by their names; a task may leave some out.
    """

    def __init__(self, cluster: Cluster, server: Server, flags: Mapping[str, Any]):
        self._cluster = cluster
        self._server = server
        with tf.Graph().as_default(), server.own_session() as session:
            devices = [device.name for device in session.list_devices()]
        self._own = dict(cluster=[list(cluster.workers), list(cluster.ps)], process=secrets.token_hex(8),
                         devices=devices, flags=dict(flags))
        self._accepted = {cluster.name: self._own}
        self._refused = set()  # processes that do not belong here
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread: the end of Python would abort one that is within TensorFlow."""
        self._left.set()
        self._thread.join(_END_SECS)

    def _renew(self):
        with tf.Graph().as_default():
            text = tf.placeholder(tf.string, [])
            publish = tf.raw_ops.AssignVariableOp(resource=_variable(self._cluster.name), value=text)
            with self._server.own_session() as session:
                for count in itertools.count():
                    session.run(publish, {text: json.dumps(dict(self._own, count=count))})
                    if self._left.wait(RENEW_SECS):
                        return

    def _read(self, name, seconds=ANSWER_SECS):
        """Returns what a task says of itself; raises an OpError if it does not answer in time, or has said nothing."""
        with tf.Graph().as_default():
            text = tf.raw_ops.ReadVariableOp(resource=_variable(name), dtype=tf.string)
            with self._server.session(name, seconds) as session:
                return json.loads(session.run(text))

    def accepts(self, name: str, address: str, is_strict: bool) -> bool:
        """Returns whether a task answers as one to work with.

        Args:
          name: of the task: 'worker 1'.
          address: of the task.
          is_strict: whether a UsageError is raised for one that does not fit. Otherwise a warning says so once, and
            another may come in its place.
        """
        try:
            greeting = self._read(name)
        except tf.errors.OpError:  # it may not have said anything of itself yet
            return False
        problem = self._problem(name, address, greeting)
        if not problem:
            self._accepted[name] = greeting
        elif is_strict:
            raise UsageError(problem)
        elif greeting['process'] not in self._refused:
            self._refused.add(greeting['process'])
            say('warning', problem)
        return not problem

    def _problem(self, name, address, greeting):
        """Returns why a task is not one to work with; '' if it is."""
        if greeting['cluster'] != self._own['cluster']:
            workers, ps = (','.join(hosts) or 'none' for hosts in greeting['cluster'])
            return (f'{name} at {address} belongs to another cluster, with the workers {workers} and the ps {ps}; '
                    'correct the hosts, here or there')
        if self._cluster.is_chief:  # which compares the flags of all, and tells them the end
            for flag, value in self._own['flags'].items():
                other = greeting['flags'].get(flag, value)
                if other != value:
                    return (f'{name} at {address} has --{flag}={other}, and this task --{flag}={value}; start all '
                            'tasks with the same flags')
        return ''

    def devices(self, name: str) -> Sequence[str]:
        """Returns the full names of the devices of a task, as it has said last."""
        return self._accepted[name]['devices']

    def is_of_cluster(self, name: str, seconds: float) -> bool:
        """Returns whether a task belongs to this cluster; raises an OpError if it does not answer in time."""
        return self._read(name, seconds)['cluster'] == self._own['cluster']

    def is_same(self, name: str) -> bool:
        """Returns whether a task is the process that was accepted."""
        pulse, accepted = self.pulse(name), self._accepted.get(name)
        return bool(pulse and accepted) and pulse[0] == accepted['process']

    def pulse(self, name: str) -> tuple[str, int] | None:
        """Returns (process, how often it has renewed its greeting) of a task; None if its server does not answer."""
        with contextlib.suppress(tf.errors.OpError):
            greeting = self._read(name)
            return greeting['process'], greeting['count']

    def silent(self, peers: Mapping[str, str]) -> str:
        """Returns which peers {name: address} do not renew their greetings, as a phrase; '' if all do."""
        with multiprocessing.pool.ThreadPool(len(peers) or 1) as pool:
            renewed = pool.map(self._is_renewed, peers)
        missing = {name: address for (name, address), is_there in zip(peers.items(), renewed) if not is_there}
        return f"{listed(missing)} {'does' if len(missing) == 1 else 'do'} not answer" if missing else ''

    def _is_renewed(self, name):
        first, begin = self.pulse(name), time.monotonic()
        while time.monotonic() - begin < _SILENT_SECS:
            time.sleep(RENEW_SECS)
            if self.pulse(name) not in (None, first):
                return True
        return False


def _variable(name):
    """Returns the handle of the variable with the greeting of a task."""
    with tf.device(device_of(name)):
        return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name='greeting')
