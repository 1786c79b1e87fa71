"""The TensorFlow server of this task, and texts that tasks' servers store.

Texts are read and written in a session with the server that stores them, where each call has a time limit. A session
with this process's server would wait for other tasks without a limit.
"""
import contextlib
import os
from collections.abc import Iterable

import tensorflow.compat.v1 as tf

from cifar10.base.errors import UsageError, describe_os_error
from cifar10.cluster import listener
from cifar10.cluster.address import split_address
from cifar10.cluster.membership import Cluster
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices
from cifar10.parallel.session_config import LEADER, session_config

ANSWER_SECS = 2  # a running TensorFlow server answers within this time; on a busy machine, after a second request


class Server:
    """A running server that by default only accepts connections between the hosts of the cluster.

    Args:
      cluster: the cluster, with this process's task.
      local_devices: the devices of this task's towers; the constructor claims them.
      limit: seconds to wait until the task's host name resolves.
      port_filter: whether to drop packets from other hosts, and to other addresses of this machine.

    Attributes:
      target: the target of sessions that reach all tasks.
    """

    def __init__(self, cluster: Cluster, local_devices: Devices, limit: float, port_filter: bool):
        self._own = cluster.name
        self._addresses = cluster.tasks
        port = split_address(cluster.address)[1]
        hosts = {split_address(address)[0] for address in self._addresses.values()}
        addresses = cluster.own_addresses(limit)
        resolved = listener.resolved(hosts)
        gpus.claim(local_devices.num_gpus)
        _bypass_proxies(hosts)
        config = session_config(local_devices)
        config.experimental.collective_group_leader = LEADER
        jobs = {job: list(tasks) for job, tasks in (('worker', cluster.workers), ('ps', cluster.ps)) if tasks}
        try:
            server = tf.train.Server(jobs, cluster.job, cluster.index, config=config, start=False)
        except tf.errors.OpError as error:
            raise UsageError(f'the server cannot be started at {cluster.address}; use another port if this port is '
                             'in use') from error
        try:
            if port_filter:
                listener.restrict_to_hosts(port, addresses, hosts, resolved)
        except OSError as error:
            raise UsageError(f'the system refuses a filter on port {port} ({describe_os_error(error)}), so everyone in '
                             'the network could run code as you; in a private network, use --port_filter=false'
                             ) from error
        server.start()
        self.target = server.target
        self._server = server

    @contextlib.contextmanager
    def _session(self, name, seconds):
        """Context with a new graph and a session with one task's server, which does not wait for other tasks.

        `seconds` is the time limit for creating the session, for each run, which raises a DeadlineExceededError, and
        for closing it. A session with this process's server has no limit.
        """
        # A server always has its own devices. This filter excludes other tasks, for which it would wait.
        config = tf.ConfigProto(device_filters=['/job:none'])
        with tf.Graph().as_default():
            if name == self._own:
                session = tf.Session(self.target, config=config)
            else:
                config.operation_timeout_in_ms = 1000 * seconds
                session = tf.Session('grpc://' + self._addresses[name], config=config)
            try:
                yield session
            finally:
                # After an error, a `tf.Session` as a context manager closes in a thread, which prints a traceback.
                with contextlib.suppress(tf.errors.OpError):
                    session.close()

    def read(self, name: str, title: str, seconds: float = ANSWER_SECS) -> str:
        """Reads a text from a task's server; raises an OpError if it does not exist or the server does not answer."""
        with self._session(name, seconds) as session:
            text = tf.raw_ops.ReadVariableOp(resource=_variable(name, title), dtype=tf.string)
            return session.run(text).decode()

    def write(self, name: str, title: str, text: str, seconds: float = ANSWER_SECS) -> None:
        """Stores a text in a task's server; raises an OpError if the server does not answer in time."""
        with self._session(name, seconds) as session:
            session.run(tf.raw_ops.AssignVariableOp(resource=_variable(name, title), value=text))


def _variable(name, title):
    with tf.device('/job:{}/task:{}/cpu:0'.format(*name.split())):
        return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=title)


def _bypass_proxies(hosts: Iterable[str]):
    """Keeps gRPC from connecting to hosts through a proxy such as `https_proxy`.

    For each connection, gRPC compares the end of the host with the entries of `no_grpc_proxy`, or if it is not set, of
    `no_proxy`.
    """
    excluded = os.environ.get('no_grpc_proxy', os.environ.get('no_proxy', ''))
    os.environ['no_grpc_proxy'] = ','.join(filter(None, [excluded, *hosts]))
