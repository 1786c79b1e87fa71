"""What this process does in a cluster: it runs a server, waits for the others, and ends when the training ends.

The chief (worker 0) builds the graph for the devices of all workers. The other processes run TensorFlow's
server and wait until the chief tells them that the training has ended.
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

# A first start may take this many times as long as a return after a loss: TensorFlow is imported, data are
# downloaded, a container image is pulled.
_START_FACTOR = 5
_END_SECS = 10  # in which a peer that runs learns that the training has ended
_LOOK_SECS = 1  # between two looks of a server whether the training has ended


def take_part(cluster: Cluster, local_devices: Devices, train: Callable, timeout: int, may_return: bool = True,
              files: Sequence[str] = (), termination: Termination | None = None,
              flags: Mapping[str, Any] | None = None, port_filter: bool = True) -> Any:
    """Runs this process's part of a training over a cluster, as the chief or as a server, until the training ends.

    Args:
      cluster: the cluster, and this process's task in it.
      local_devices: the devices of this worker's towers; none for a ps.
      train: function (devices of all workers, before_session) that trains; only the chief calls it. It must
        call `before_session()` before it makes a session.
      timeout: seconds that a lost process may take to come back.
      may_return: whether a lost process may come back; if not, a loss ends this process.
      files: paths of the chief's training data, which must have the same contents on every worker.
      termination: the handler of the termination signals; a server defers them until the chief has ended.
      flags: flags that must be the same in all tasks, by their names; a task may leave some out.
      port_filter: whether packets from outside the cluster to this task's port are dropped.

    Returns:
      What `train` returns; None in a process that does not call it.
    """
    say('task', f'{cluster.name} at {cluster.address}; {len(cluster.workers)} workers, {len(cluster.ps)} ps')
    if local_devices.on_gpus and local_devices.reason:  # how this task's environment selects them, which only it knows
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
    """This process as a member of a cluster, and its watch over the other processes."""

    def __init__(self, cluster, server, greetings, timeout, may_return):
        self.server = server
        self._cluster = cluster
        self._greetings = greetings
        self._timeout = timeout
        self._return_limit = timeout if may_return else 0
        self._watch = None
        self._had_session = False
        # The title of the text by which a server learns of the end: the status. Tasks of another cluster ignore it.
        self._end = f'end of training of {cluster.tasks}'
        # The chief ends if it loses a peer for good, so the other tasks need to watch only the chief.
        self._peers = cluster.others() if cluster.is_chief else {'worker 0': cluster.workers[0]}

    def wait_for_peers(self):
        """Waits up to five times the timeout until the peers answer as TensorFlow servers, then watches them."""
        self._wait(self._peers, _START_FACTOR * self._timeout)
        self._watch = watch.Watch(self._peers, self._return_limit, self._end_status)

    def _wait(self, peers, limit, announce=True):
        """Waits until peers {name: address} answer; raises a RunError after `limit` seconds.

        The chief refuses a task that does not fit before the first session. Later it waits for another in its place, as
        the other tasks always do: theirs may be the right cluster.
        """
        is_strict = self._cluster.is_chief and not self._had_session

        def answers(name, address):
            # If the training has ended, the chief may be gone before this process has reached it.
            return self._end_status() or (reachable(address) and self._greetings.accepts(name, address, is_strict))
        with unlimited():  # which `limit` ends
            missing = watch.wait_for(peers, limit, answers, announce)
        if missing:
            name, address = next(iter(missing.items()))
            if reachable(address):
                raise RunError(f'something listens at {address}, but does not answer as {name} of this cluster '
                               f'within {limit} s; check whether it is another program, is stopped, or was started '
                               'with other hosts')
            way_out = f', or {self._cluster.way_out}' if self._cluster.way_out else ''
            raise TemporaryError(f'{watch.listed(missing)} cannot be reached after {limit} s; check whether it is '
                                 f'running and its address is right{way_out}')

    def silent(self):
        return self._greetings.silent(self._peers)

    def before_session(self):
        """Waits up to the timeout until every task answers, because making a session has no time limit."""
        self._wait(self._cluster.others(), self._timeout, announce=False)
        self._had_session = True

    def _end_status(self):
        """Returns the status that the training ended with, as text, if the chief has told this task; else ''."""
        with contextlib.suppress(tf.errors.FailedPreconditionError):  # nothing is written there
            return self.server.read(self._cluster.name, self._end)
        return ''

    def serve(self):
        """Serves until the chief announces the end of the training; raises a RunError if the training failed."""
        with doing('the steps of the chief'), stuck.asking(self.silent):
            while not (status := self._end_status()):
                if self._greetings.answers('worker 0'):
                    moved()
                time.sleep(_LOOK_SECS)
        self._watch.stop()
        if int(status):
            error = TemporaryError if int(status) == TemporaryError.status else RunError
            raise error(f'the chief, worker 0 at {self._cluster.workers[0]}, ended with an error; see its output')

    def tell_end(self, status):
        """Tells the other processes that the training has ended, with 0 if it succeeded, else with the error's status.

        A process that is away learns it from its watch. After a success, the chief waits for a process that is stopped:
        when the process continues, nobody else could tell it that the chief has finished and is not lost.
        """
        if self._watch:
            self._watch.stop()

        def tell(name, address):
            with contextlib.suppress(tf.errors.OpError):
                if reachable(address, _END_SECS):
                    self.server.write(name, self._end, str(status), _END_SECS)
                return True
            return False
        with unlimited():
            missing = watch.wait_for(self._cluster.others(), 0 if status else self._timeout, tell)
        if missing and not status:
            say('warning', f'no answer from {watch.listed(missing)}, which may report this finished chief as lost')
