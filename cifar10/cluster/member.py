"""What this process does in a cluster: it runs a server, waits for the others, and ends when the training ends.

The chief (worker 0) builds the graph for the devices of all workers. The other processes run TensorFlow's
server and wait until the chief tells them that the training has ended.
"""
import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing, moved
from cifar10.base.console import say
from cifar10.base.errors import RunError, TemporaryError, UsageError, reason
from cifar10.base.signals import Termination
from cifar10.cluster import watch
from cifar10.cluster.address import reachable
from cifar10.cluster.greeting import Greetings
from cifar10.cluster.membership import Cluster
from cifar10.cluster.server import Server, device_of
from cifar10.parallel.devices import Devices

# A first start may take this many times as long as a return after a loss: TensorFlow is imported, data are
# downloaded, a container image is pulled.
_START_FACTOR = 5
_END = 'end of training'  # of the text with which a server learns of it: the status
_END_SECS = 10  # in which a peer can be told that the training has ended, which is tried once
_LOOK_SECS = 1  # between two looks of a server whether the training has ended


def take_part(cluster: Cluster, local_devices: Devices, train: Callable, timeout: int, may_return: bool = True,
              files: Sequence[str] = (), termination: Termination | None = None,
              flags: Mapping[str, Any] | None = None) -> Any:
    """Runs this process's part of a training over a cluster, as the chief or as a server, until the training ends.

    Args:
      cluster: the cluster, and this process's task in it.
      local_devices: the devices of this worker's towers; none for a ps.
      train: function (devices of all workers, before_session) that trains; only the chief calls it. It must
        call `before_session()` before it makes a session.
      timeout: seconds that a lost process may take to come back.
      may_return: whether a lost process may come back; if not, a loss ends this process.
      files: paths of the training data, which must have the same contents on every worker.
      termination: the handler of the termination signals; a server defers them until the chief has ended.
      flags: those that must be the same in all tasks, by their names; a task may leave some out.

    Returns:
      What `train` returns; None in a process that does not call it.
    """
    say('task', f'{cluster.name} at {cluster.address}; {len(cluster.workers)} workers, {len(cluster.ps)} ps')
    if local_devices.on_gpus and local_devices.reason:  # how this task's environment selects them, which only it knows
        say('devices', str(local_devices))
    member = _Member(cluster, local_devices, timeout, may_return, flags or {})
    if cluster.is_chief:
        return _lead(member, cluster, local_devices, train, files)
    member.wait_for_peers()
    if termination:
        termination.defer('when the chief has ended')
    member.serve()
    say('done', 'the training has ended')
    return None


def _lead(member, cluster, local_devices, train, files):
    """Trains as the chief, and tells the other tasks when it ends; returns what `train` returns."""
    status = RunError.status
    try:
        member.wait_for_peers()
        devices = local_devices.spread(len(cluster.workers), len(cluster.ps), member.server.target)
        member.check_files(files)
        with doing('outside the steps', OF_FIRST_STEP, silent=member.silent):
            ended = train(devices, lambda: member.before_session(files))
        status = 0
        return ended
    except TemporaryError as error:
        status = error.status
        raise
    finally:
        member.tell_end(status)


class _Member:
    """This process as a member of a cluster, and its watch over the other processes.

    Its arguments are those of `take_part`.
    """

    def __init__(self, cluster, local_devices, timeout, may_return, flags):
        self._cluster = cluster
        self._timeout = timeout
        self._return_limit = timeout if may_return else 0
        self._watch = None
        self._had_session = False
        self.server = Server(cluster, local_devices, _START_FACTOR * timeout)
        self._greetings = Greetings(cluster, self.server, flags)
        # A server depends on the chief only, except where all processes compute an update together.
        self._peers = cluster.others() if cluster.is_chief or not may_return else {'worker 0': cluster.workers[0]}

    def wait_for_peers(self):
        """Waits until the peers that this process needs answer as TensorFlow servers, then watches them.

        The limit is five times the timeout.
        """
        self._wait(self._peers, _START_FACTOR * self._timeout)
        self._watch = watch.Watch(self._peers, self._return_limit)

    def _wait(self, peers, limit, announce=True):
        """Waits until peers {name: address} answer; raises a RunError after `limit` seconds.

        The chief refuses a task that does not fit before the first session. Later it waits for another in its place, as
        the other tasks always do: theirs may be the right cluster.
        """
        is_strict = self._cluster.is_chief and not self._had_session

        def answers(name, address):
            if not self._cluster.is_chief and self._end_status() is not None:
                return True  # the chief may be gone before this process has reached it
            return reachable(address) and self._greetings.accepts(name, address, is_strict)
        with doing('while it waits for other processes', math.inf):  # which `limit` ends
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
        """Returns which peers do not answer, as a phrase; '' if all do."""
        return self._greetings.silent(self._peers)

    def before_session(self, files):
        """Waits until every task answers, because making a session has no time limit, and checks its files.

        It waits as long as a lost peer may take to come back. A peer may come back with other data; raises a RunError
        then. The data were checked before the first session.
        """
        self._wait(self._cluster.others(), self._timeout, announce=False)
        if self._had_session:
            try:
                self.check_files(files)
            except UsageError as error:
                raise RunError(str(error)) from error
        self._had_session = True

    def check_files(self, paths):
        """Checks by size and fingerprint that every worker has the same files as the chief."""
        if not paths:
            return
        chiefs, *others = [self._fingerprints(f'worker {i}', address, paths)
                           for i, address in enumerate(self._cluster.workers)]
        for i, prints in enumerate(others, 1):
            if prints != chiefs:
                path = next(path for path, one, other in zip(paths, chiefs, prints) if one != other)
                raise UsageError(f"worker {i} at {self._cluster.workers[i]}: its {path} differs from the chief's; copy "
                                 "the chief's data there")

    def _fingerprints(self, name, address, paths):
        """Returns (size, fingerprint) of each file of a worker."""
        with tf.Graph().as_default(), tf.device(device_of(name)):
            contents = [tf.decode_raw(tf.io.read_file(path), tf.uint8) for path in paths]
            prints = [(tf.size(content), tf.fingerprint(content[None])) for content in contents]
            try:
                with self.server.session(name, _START_FACTOR * self._timeout) as session:
                    return [(int(size), bytes(digest)) for size, digest in session.run(prints)]
            except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
                raise UsageError(f'{name} at {address} cannot read the data: {reason(error)}; '
                                 "give every worker the same --data_dir, or copy the chief's data there") from error
            except tf.errors.OpError as error:
                raise TemporaryError(f'{name} at {address} does not answer: {reason(error)}; start all processes again '
                                     'to continue from the newest checkpoint') from error

    def _end_status(self):
        """Returns the status that the training ended with, if the chief has told this task; else None."""
        try:
            return int(self.server.read(self._cluster.name, _END))
        except tf.errors.FailedPreconditionError:  # nothing is written there
            return None

    def serve(self):
        """Serves until the chief announces the end of the training; raises a RunError if the training failed."""
        with doing('while the chief trains', silent=self.silent):
            while (status := self._end_status()) is None:
                if self._greetings.answers('worker 0'):
                    moved()
                time.sleep(_LOOK_SECS)
        self._watch.stop()
        if status:
            error = TemporaryError if status == TemporaryError.status else RunError
            raise error(f'the chief, worker 0 at {self._cluster.workers[0]}, ended with an error; see its output')

    def tell_end(self, status):
        """Tells the other processes that the training has ended, with 0 if it succeeded, else with the error's status.

        Those that are away learn it from their watch.
        """
        if self._watch:
            self._watch.stop()

        def tell(name, address):
            with contextlib.suppress(tf.errors.OpError):
                if reachable(address) and self._greetings.is_of_cluster(name, _END_SECS):
                    self.server.write(name, _END, str(status), _END_SECS)
        others = self._cluster.others()
        # All at once: if this process is killed while it waits for one, the others know.
        with ThreadPoolExecutor(len(others) or 1) as pool:
            list(pool.map(tell, others, others.values()))
