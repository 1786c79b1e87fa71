"""The role of this process in a cluster: chief or server.

The chief (worker 0) builds the graph for the devices of all workers. The other processes run TensorFlow's server until
the chief announces the end of the training.
"""
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base import stuck
from cifar10.base.activity import doing, moved, unlimited
from cifar10.base.console import say
from cifar10.base.errors import RunError, TemporaryError
from cifar10.base.signals import Termination
from cifar10.cluster import watch
from cifar10.cluster.address import reachable
from cifar10.cluster.greeting import Greetings
from cifar10.cluster.membership import Cluster
from cifar10.cluster.server import Server
from cifar10.parallel.devices import Devices

# A first start may take five times longer than a return after a loss: it may import TensorFlow, download data or pull a
# container image.
_START_FACTOR = 5
_END_SECS = 10  # a running peer learns the end of the training within this time
_LOOK_SECS = 1  # interval between a server's checks for the end of the training


def take_part(cluster: Cluster, local_devices: Devices, train: Callable, timeout: int, may_return: bool = True,
              files: Sequence[str] = (), termination: Termination | None = None,
              flags: Mapping[str, Any] | None = None, port_filter: bool = True) -> Any:
    """Runs this process's part of a training over a cluster, as the chief or as a server, until the training ends.

    Args:
      cluster: the cluster, with this process's task.
      local_devices: the devices of this worker's towers; none for a ps.
      train: function (devices of all workers, before_session) that trains; only the chief calls it. It must
        call `before_session()` before it creates a session.
      timeout: seconds to wait for a lost process to come back.
      may_return: whether a lost process may come back; if not, a loss ends this process.
      files: paths of the chief's training data, which must have the same contents on every worker.
      termination: the handler of the termination signals; a server defers them until the chief has ended.
      flags: flags that must match in all tasks, by name; a task may leave some out.
      port_filter: whether packets from outside the cluster to this task's port are dropped.

    Returns:
      The result of `train` on the chief, None on a server.
    """
    say('task', f'{cluster.name} at {cluster.address}; {len(cluster.workers)} workers, {len(cluster.ps)} ps')
    if local_devices.on_gpus and local_devices.reason:  # the chief does not know this task's selection of GPUs
        say('devices', str(local_devices))
    server = Server(cluster, local_devices, _START_FACTOR * timeout, port_filter)
    member = _Member(cluster, server, Greetings(cluster, server, flags or {}, files), timeout, may_return)
    if cluster.is_chief:
        return _lead(member, cluster, local_devices, train)
    member.wait_for_peers()
    if termination:
        termination.defer('when the chief has ended')
    member.serve()
    say('done', 'the training has ended')
    return None


def _lead(member, cluster, local_devices, train):
    status = RunError.status
    try:
        member.wait_for_peers()
        devices = local_devices.spread(len(cluster.workers), len(cluster.ps), member.server.target)
        with stuck.asking(member.silent):
            ended = train(devices, member.before_session)
        status = 0
        return ended
    except TemporaryError as error:
        status = error.status
        raise
    finally:
        member.tell_end(status)


class _Member:
    """This process as a member of a cluster, with a watch over the other processes."""

    def __init__(self, cluster, server, greetings, timeout, may_return):
        self.server = server
        self._cluster = cluster
        self._greetings = greetings
        self._timeout = timeout
        self._return_limit = timeout if may_return else 0
        self._watching = contextlib.ExitStack()
        self._had_session = False
        # The title of the text with the final status; tasks of a different cluster have a different title.
        self._end = f'end of training of {cluster.tasks}'
        # The chief ends if it loses a peer permanently, so the other tasks only need to watch the chief.
        self._peers = cluster.others() if cluster.is_chief else {'worker 0': cluster.workers[0]}

    def wait_for_peers(self):
        """Waits up to five times the timeout until the peers answer as TensorFlow servers, then watches them."""
        self._wait(self._peers, _START_FACTOR * self._timeout)
        self._watching.callback(watch.Watch(self._peers, self._return_limit, self._end_status).stop)

    def _wait(self, peers, limit, announce=True):
        """Waits until peers {name: address} answer; raises a RunError after `limit` seconds.

        Before the first session, the chief raises a UsageError for a task that does not match. Later, it waits for a
        replacement. The other tasks always wait.
        """
        is_strict = self._cluster.is_chief and not self._had_session

        def answers(name, address):
            # If the training has ended, the chief may be gone.
            return self._end_status() or (reachable(address) and self._greetings.accepts(name, address, is_strict))
        with unlimited():  # `limit` ends it
            missing = watch.wait_for(peers, limit, answers, announce)
        if missing:
            name, address = next(iter(missing.items()))
            if reachable(address):
                raise RunError(f'the process at {address} does not answer as {name} of this cluster within {limit} s; '
                               'check whether it is another program, is stopped, or was started with different hosts')
            way_out = f', or {self._cluster.way_out}' if self._cluster.way_out else ''
            raise TemporaryError(f'{watch.listed(missing)} cannot be reached after {limit} s; check whether it is '
                                 f'running and has this address{way_out}')

    def silent(self):
        return self._greetings.silent(self._peers)

    def before_session(self):
        """Waits up to the timeout until every task answers, because creating a session has no time limit."""
        self._wait(self._cluster.others(), self._timeout, announce=False)
        self._had_session = True

    def _end_status(self):
        """Returns the final status of the training, as text, if the chief has announced it; else ''."""
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # no status yet
            return self.server.read(self._cluster.name, self._end)
        return ''

    def serve(self):
        """Serves until the chief announces the end of the training; raises a RunError if the training failed."""
        with doing('the steps of the chief'), stuck.asking(self.silent):
            while not (status := self._end_status()):
                if self._greetings.answers('worker 0'):
                    moved()
                time.sleep(_LOOK_SECS)
        self._watching.close()
        if int(status):
            error = TemporaryError if int(status) == TemporaryError.status else RunError
            raise error(f'the chief, worker 0 at {self._cluster.workers[0]}, ended with an error; see its output')

    def tell_end(self, status):
        """Announces the end of the training to the other processes, with 0 after a success, else the error's status.

        An unreachable process notices the end by its watch. After a success, the chief waits for stopped processes:
        otherwise they would later report the finished chief as lost.
        """
        self._watching.close()

        def tell(name, address):
            with contextlib.suppress(tf.errors.OpError):
                if reachable(address, _END_SECS):
                    self.server.write(name, self._end, str(status), _END_SECS)
                return True
            return False
        with unlimited():
            missing = watch.wait_for(self._cluster.others(), 0 if status else self._timeout, tell)
        if missing and not status:
            say('warning', f'no answer from {watch.listed(missing)}, which may report the finished chief as lost')
