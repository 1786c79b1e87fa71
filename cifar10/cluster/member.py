"""This process's part in a cluster: its server, its session with the others, and one end for all.

The chief (worker 0) builds the graph for the devices of all; the other processes run TensorFlow's server
and wait.
"""
import contextlib
from collections.abc import Callable, Sequence

import tensorflow.compat.v1 as tf

from cifar10.cluster import listener, watch
from cifar10.cluster.address import own_addresses
from cifar10.cluster.membership import Cluster, split_address
from cifar10.errors import RunError, UsageError, reason
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices, absent, spread
from cifar10.parallel.session_config import LEADER, session_config
from cifar10.signals import Termination

_START_FACTOR = 5  # a start takes longer than a return: TensorFlow, a download, a container's image
_ANSWER_SECS = 2  # in which a TensorFlow server that is running answers


def take_part(cluster: Cluster, local: Devices, chief: Callable, timeout: int, may_return: bool = True,
              files: Sequence[str] = (), termination: Termination | None = None) -> None:
    """Takes this process's part in a cluster until the training has ended: as its chief, or as a server.

    Args:
      cluster: a Cluster.
      local: the `Devices` of a worker; `parallel.devices.NONE` for a ps.
      chief: function (`Devices` of all workers, function to be called before a session is made),
        which the chief calls.
      timeout: seconds that a lost process may take to come back.
      may_return: whether one may; if not, a loss ends this process.
      files: paths that every worker is to have with the same contents.
      termination: a `cli.signals.Termination`, or None.

    Raises:
      UsageError: this task cannot listen where it should, or a worker's files differ.
      RunError: other tasks cannot be reached, or the training ended with an error.
    """
    print(f'task       {cluster.job} {cluster.index} at {cluster.address}; {len(cluster.workers)} workers, '
          f'{len(cluster.ps)} ps')
    member = Member(cluster, local, timeout, may_return)
    if not cluster.is_chief:
        member.wait_for_peers()
        if termination:
            termination.defer('when the chief has ended')
        member.serve()
        print('done       the training has ended')
        return
    status = 1
    try:
        member.wait_for_peers()
        devices = spread(local, len(cluster.workers), len(cluster.ps), member.target)
        member.check_devices(devices)
        member.check_files(files)
        chief(devices, lambda: member.before_session(devices))
        status = 0
    finally:
        member.tell_end(status)


class Member:
    """This process's part in a cluster: its server, and the watch over the others.

    Args:
      cluster: a Cluster.
      local: the `Devices` of this task.
      timeout: seconds that a lost peer may take to come back.
      may_return: whether one may; if not, a loss ends this process at once.
    """

    def __init__(self, cluster: Cluster, local: Devices, timeout: int, may_return: bool):
        self._cluster, self._timeout = cluster, timeout
        self._limit = timeout if may_return else 0
        self._watch = None
        self._server = self._start(local)
        chief = {'worker 0': cluster.workers[0]}
        # Who waits for the chief alone needs no other; who computes with all, all.
        self._watched = cluster.others() if cluster.is_chief or not may_return else chief

    def _start(self, local):
        """Returns a running server that takes connections to this task's address alone."""
        cluster = self._cluster
        port = split_address(cluster.address)[1]
        addresses = own_addresses(cluster, _START_FACTOR * self._timeout)
        gpus.claim(local.num_gpus)
        config = session_config(local)
        config.experimental.collective_group_leader = LEADER
        jobs = {job: list(hosts) for job, hosts in (('worker', cluster.workers), ('ps', cluster.ps)) if hosts}
        try:
            server = tf.train.Server(jobs, cluster.job, cluster.index, config=config, start=False)
        except tf.errors.OpError as error:
            raise UsageError(f'the server cannot be started at {cluster.address}; is the port in use?') from error
        try:
            listener.restrict(port, addresses)
        except OSError as error:
            print(f'warning: {error}: the server listens on all addresses of this machine')
        server.start()
        return server

    @property
    def target(self) -> str:
        """What a session of the chief's wants as its target."""
        return self._server.target

    def wait_for_peers(self) -> None:
        """Returns once the peers that this process needs answer as TensorFlow servers, and watches them from then on.

        Raises:
          RunError: they do not within five times the timeout.
        """
        self._await(self._watched, _START_FACTOR * self._timeout)
        self._watch = watch.Watch(self._watched, self._limit)

    def _await(self, addresses, limit, announce=True):
        def answers(name, address):
            return self._was_told() or watch.reachable(address) and self._answers(name)
        missing = watch.wait_for(addresses, limit, answers, announce)
        if missing:
            name, address = next(iter(missing.items()))
            if watch.reachable(address):
                raise RunError(f'something listens at {address}, but does not answer as {name} of this cluster '
                               f'within {limit} s: is it another program, is it stopped, or was it started with '
                               'other hosts?')
            raise RunError(f'{watch.listed(missing)} cannot be reached after {limit} s; is it running, and is its '
                           'address right?')

    def _was_told(self):
        """Returns whether the chief has said that the training has ended, and may be gone before it was seen here."""
        cluster = self._cluster
        if cluster.is_chief:
            return False
        with tf.Graph().as_default():
            size = _end_queue(cluster.job, cluster.index).size()
            with tf.Session(self._server.target, config=self._own_devices()) as session:
                return session.run(size) > 0

    def _own_devices(self):
        return tf.ConfigProto(device_filters=[f'/job:{self._cluster.job}/task:{self._cluster.index}'])

    def _answers(self, name):
        job, index = name.split()
        try:
            return bool(self._devices((job, int(index))))
        except tf.errors.OpError:
            return False

    def _devices(self, task):
        """Returns the names of a task's devices, as it says itself; raises an OpError if it does not answer."""
        with tf.Graph().as_default():
            nothing = tf.no_op()
            with self._session(task, _ANSWER_SECS) as session:
                # The run makes the session, within its time limit. The list by itself would wait without one, and
                # without letting another thread see a signal.
                session.run(nothing)
                found = [device.name for device in session.list_devices()]
        job, index = task
        return [name for name in found if name.startswith(f'/job:{job}/replica:0/task:{index}/')]

    def check_devices(self, devices: Devices) -> None:
        """Checks that every worker has the devices of its towers: soft placement would put them elsewhere in silence.

        Args:
          devices: the `Devices` of all workers.

        Raises:
          UsageError: one has not; it is named with what it has.
        """
        for i, address in enumerate(self._cluster.workers):
            try:
                present = self._devices(('worker', i))
            except tf.errors.OpError as error:
                raise RunError(f'worker {i} at {address} does not answer: {reason(error)}') from error
            task = f'/job:worker/task:{i}/'
            missing = [name for name in absent(devices, present) if name.startswith(task)]
            if missing:
                raise UsageError(
                    f"worker {i} at {address} has {' '.join(_short(name) for name in present if 'PU:' in name)}, "
                    f"but not the chief's {' '.join(map(_short, missing))}; start all workers with the same "
                    '--num_gpus and --tower_device')

    def before_session(self, devices: Devices) -> None:
        """Returns once every task answers and has its devices: making a session has no time limit of its own.

        Raises:
          RunError: one does not within the time in which a lost peer may come back.
          UsageError: one came back with other devices.
        """
        self._await(self._cluster.others(), self._timeout, announce=False)
        self.check_devices(devices)

    def check_files(self, paths: Sequence[str]) -> None:
        """Looks that every worker has the chief's files, by their fingerprints.

        Raises:
          UsageError: one has not; it is named.
        """
        own = None
        for i, address in enumerate(self._cluster.workers if paths else ()):
            with tf.Graph().as_default(), tf.device(f'/job:worker/task:{i}/cpu:0'):
                contents = [tf.decode_raw(tf.io.read_file(path), tf.uint8) for path in paths]
                prints = [(tf.size(each), tf.fingerprint(each[None])) for each in contents]
                try:
                    with self._session(('worker', i), _START_FACTOR * self._timeout) as session:
                        found = [(int(size), bytes(mark)) for size, mark in session.run(prints)]
                except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
                    raise UsageError(f'worker {i} at {address} cannot read the data: {reason(error)}; '
                                     'give every worker the same --data_dir') from error
                except tf.errors.OpError as error:
                    raise RunError(f'worker {i} at {address} does not answer: {reason(error)}') from error
            own = own or found
            if found != own:
                path = next(path for path, one, other in zip(paths, own, found) if one != other)
                raise UsageError(f"worker {i} at {address}: its {path} is not the chief's; copy the chief's data "
                                 'there')

    def serve(self) -> None:
        """Serves until the chief says that the training has ended.

        Raises:
          RunError: it ended with an error.
        """
        cluster = self._cluster
        with tf.Graph().as_default():
            ended = _end_queue(cluster.job, cluster.index).dequeue()
            with tf.Session(self._server.target, config=self._own_devices()) as session:
                status = session.run(ended)
        self._watch.stop()
        if status:
            raise RunError(f'the chief, worker 0 at {cluster.workers[0]}, ended with an error; its line says which')

    def tell_end(self, status: int) -> None:
        """Tells the other processes that the training has ended; those that are away find it out themselves."""
        if self._watch:
            self._watch.stop()
        for task, address in self._cluster.tasks.items():
            if task != (self._cluster.job, self._cluster.index) and watch.reachable(address):
                with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
                    told = _end_queue(*task).enqueue(status)
                    with self._session(task, _ANSWER_SECS) as session:
                        session.run(told)

    def _session(self, task, seconds):
        """Returns a session of one task's own server, which waits for no other.

        It is made by a call over the network, and such a call has a time limit. A session of this process's own
        server for another task's devices would wait without one.

        Args:
          task: (job, index).
          seconds: after which making the session, or a run of it, ends with a DeadlineExceededError.
        """
        # A server always has its own devices; this filter leaves out all others, which it would wait for.
        config = tf.ConfigProto(device_filters=['/job:none'], operation_timeout_in_ms=1000 * seconds)
        return tf.Session('grpc://' + self._cluster.tasks[task], config=config)


def _short(name):
    """Returns 'CPU:0' of a device's full name."""
    return name.rsplit('/', 1)[1].upper().removeprefix('DEVICE:')


def _end_queue(job, index):
    """Returns the queue through which the chief tells a task the status that the training ended with."""
    with tf.device(f'/job:{job}/task:{index}/cpu:0'):
        return tf.queue.FIFOQueue(1, tf.int32, shapes=[[]], shared_name='end_of_training')
