"""The TensorFlow server of this task, and texts that it and the other tasks' servers keep.

A session with a task's own server has a time limit for each call over the network. A session with this process's own
server that uses another task's devices would wait for that task without a limit.
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

ANSWER_SECS = 2  # a running TensorFlow server answers within this time; one of a busy machine, when asked again


class Server:
    """A running server that accepts only connections between the hosts of the cluster, unless it is told otherwise.

    Args:
      cluster: the cluster, and this process's task in it.
      local_devices: the devices of this task's towers, which are claimed.
      limit: seconds to wait until the task's host name resolves.
      port_filter: whether packets from other hosts, and to other addresses of this machine, are dropped.

    Attributes:
      target: the target of sessions that reach all tasks.
    """

    def __init__(self, cluster: Cluster, local_devices: Devices, limit: float, port_filter: bool):
        self._own = cluster.name
        self._addresses = cluster.tasks
        port = split_address(cluster.address)[1]
        hosts = {split_address(each)[0] for each in self._addresses.values()}
        addresses = cluster.own_addresses(limit)
        found = listener.resolved(hosts)
        gpus.claim(local_devices.num_gpus)
        _bypass_proxies(hosts)
        config = session_config(local_devices)
        config.experimental.collective_group_leader = LEADER
        jobs = {job: list(tasks) for job, tasks in (('worker', cluster.workers), ('ps', cluster.ps)) if tasks}
        try:
            server = tf.train.Server(jobs, cluster.job, cluster.index, config=config, start=False)
        except tf.errors.OpError as error:
            raise UsageError(f'the server cannot be started at {cluster.address}; use another port if that one is '
                             'in use') from error
        try:
            if port_filter:
                listener.restrict_to_hosts(port, addresses, hosts, found)
        except OSError as error:
            raise UsageError(f'the system refuses a filter on port {port} ({describe_os_error(error)}), without which '
                             'everybody who reaches this machine can run any code as you; if its network is your own, '
                             'use --port_filter=false') from error
        server.start()
        self.target = server.target
        self._server = server

    @contextlib.contextmanager
    def _session(self, name, seconds):
        """Context with a session of a new graph with one task's own server, which waits for no other task.

        `seconds` is the time limit of making the session, of each run, after which a DeadlineExceededError is raised,
        and of closing it. A session with the server of this process has none.
        """
        # A server always has its own devices. This filter excludes all others, which it would wait for.
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
                # After an error, a `tf.Session` used as a context closes in another thread, which shows a traceback.
                with contextlib.suppress(tf.errors.OpError):
                    session.close()

    def read(self, name: str, title: str, seconds: float = ANSWER_SECS) -> str:
        """Returns a text that a task's server keeps; raises an OpError if it has none, or does not answer in time."""
        with self._session(name, seconds) as session:
            text = tf.raw_ops.ReadVariableOp(resource=_variable(name, title), dtype=tf.string)
            return session.run(text).decode()

    def write(self, name: str, title: str, text: str, seconds: float = ANSWER_SECS) -> None:
        """Gives a text to a task's server to keep; raises an OpError if it does not answer in time."""
        with self._session(name, seconds) as session:
            session.run(tf.raw_ops.AssignVariableOp(resource=_variable(name, title), value=text))


def _variable(name, title):
    with tf.device('/job:{}/task:{}/cpu:0'.format(*name.split())):
        return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name=title)


def _bypass_proxies(hosts: Iterable[str]):
    """Keeps gRPC from connecting to hosts through a proxy such as `https_proxy`, which it reads at each connection.

    It compares the end of a host with each entry of `no_grpc_proxy` or, only where that is not set, of `no_proxy`.
    """
    kept = os.environ.get('no_grpc_proxy', os.environ.get('no_proxy', ''))
    os.environ['no_grpc_proxy'] = ','.join(filter(None, [kept, *hosts]))
