"""A cluster: whose hosts come from flags or TF_CONFIG, a server in each process, and one end for all.

The chief (worker 0) builds the graph for the devices of all; the other processes run TensorFlow's server
and wait. Knows processes and servers; nothing of networks, towers or updates.
"""
import contextlib
import dataclasses
import errno
import os
import socket

import tensorflow.compat.v1 as tf

from cifar10 import devices, listener, peers
from cifar10.console import RunError, UsageError, reason

_NO_TOWERS = devices.Devices((('/cpu:0',),), 'it holds variables')  # of a ps
_START_FACTOR = 5  # a start takes longer than a return: TensorFlow, a download, a container's image


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Who is in a cluster, and which of them this process is.

    Attributes:
      workers, ps: the addresses 'host:port' of the tasks of either job; the chief is worker 0.
      job: 'worker' or 'ps', of this process.
      index: its task.
    """
    workers: tuple
    ps: tuple
    job: str
    index: int

    @property
    def is_chief(self):
        """Whether this process builds the graph, saves and reports."""
        return (self.job, self.index) == ('worker', 0)

    @property
    def tasks(self):
        """{(job, index): address} of all."""
        jobs = dict(worker=self.workers, ps=self.ps)
        return {(job, i): address for job, addresses in jobs.items() for i, address in enumerate(addresses)}

    def others(self):
        """Returns {'worker 1': address} of all other tasks."""
        return {'%s %d' % task: address for task, address in self.tasks.items() if task != (self.job, self.index)}


def resolve(config):
    """Returns the Cluster that a `config.TrainConfig` (or else TF_CONFIG) describes, or None.

    Raises:
      UsageError: it contradicts itself.
    """
    if config.worker_hosts or config.ps_hosts or config.job_name or config.task_index:
        if not config.job_name or not config.worker_hosts:
            raise UsageError('a cluster needs --job_name, --task_index and --worker_hosts; give all of them, or none')
        jobs = dict(worker=config.worker_hosts.split(','), ps=(config.ps_hosts or '').split(','))
        job, index = config.job_name, config.task_index
    elif os.environ.get('TF_CONFIG'):
        jobs, job, index = _from_tf_config()
    else:
        return None
    cluster = Cluster(*[tuple(host for host in jobs.get(name, []) if host) for name in ('worker', 'ps')], job, index)
    _check(cluster)
    return cluster


def _from_tf_config():
    """Returns ({job: addresses}, this job, this index); a job 'chief' or 'master' goes before the workers."""
    try:
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        jobs, job, index = resolver.cluster_spec().as_dict(), resolver.task_type, resolver.task_id
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise UsageError('the environment variable TF_CONFIG does not describe a cluster (%s); correct it, or unset it'
                         % error) from error
    for name in ('chief', 'master'):
        if name in jobs:
            first = list(jobs.pop(name))
            jobs['worker'] = first + list(jobs.get('worker', []))
            index = index if job == name else index + len(first) if job == 'worker' else index
            job = 'worker' if job == name else job
    if job not in ('worker', 'ps'):
        raise UsageError('TF_CONFIG: the task is of type %s; there are chief, worker and ps' % job)
    return jobs, job, int(index or 0)


def _check(cluster):
    addresses = list(cluster.tasks.values())
    for address in addresses:
        host, _, port = address.rpartition(':')
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UsageError('%s is not an address of the form host:port' % address)
        if addresses.count(address) > 1:
            raise UsageError('%s is the address of two tasks; give each its own' % address)
    if (cluster.job, cluster.index) not in cluster.tasks:
        raise UsageError('--job_name=%s has no --task_index=%d; there are %d tasks' % (
            cluster.job, cluster.index, sum(job == cluster.job for job, _ in cluster.tasks)))


def take_part(cluster, local, chief, timeout, may_return=True, files=(), termination=None):
    """Takes this process's part in a cluster until the training has ended: as its chief, or as a server.

    Args:
      cluster: a Cluster.
      local: the `devices.Devices` of one worker.
      chief: function (`devices.Devices` of all workers), which the chief calls.
      timeout: seconds that a lost process may take to come back.
      may_return: whether one may; if not, a loss ends this process.
      files: paths that every worker is to have with the same contents.
      termination: a `console.Termination`, or None.

    Raises:
      UsageError: this task cannot listen where it should, or a worker's files differ.
      RunError: other tasks cannot be reached, or the training ended with an error.
    """
    print('task       %s %d at %s; %d workers, %d ps' % (
        cluster.job, cluster.index, cluster.tasks[cluster.job, cluster.index], len(cluster.workers), len(cluster.ps)))
    member = Member(cluster, local if cluster.job == 'worker' else _NO_TOWERS, timeout, may_return)
    if not cluster.is_chief:
        if termination:
            termination.defer('when the chief has ended')
        member.wait_for_peers()
        member.serve()
        print('done       the training has ended')
        return
    status = 1
    try:
        member.wait_for_peers()
        member.check_files(files)
        chief(devices.spread(local, len(cluster.workers), len(cluster.ps), member.target))
        status = 0
    finally:
        member.tell_end(status)


class Member:
    """This process's part in a cluster: its server, and the watch over the others.

    Args:
      cluster: a Cluster.
      local: the `devices.Devices` of this task.
      timeout: seconds that a lost peer may take to come back.
      may_return: whether one may; if not, a loss ends this process at once.
    """

    def __init__(self, cluster, local, timeout, may_return):
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
        address = cluster.tasks[cluster.job, cluster.index]
        host, port = address.rsplit(':', 1)
        ip = self._own_ip(host.strip('[]'), int(port), address)
        config = devices.session_config(local)
        config.experimental.collective_group_leader = devices.LEADER
        jobs = {job: list(hosts) for job, hosts in (('worker', cluster.workers), ('ps', cluster.ps)) if hosts}
        try:
            server = tf.train.Server(jobs, cluster.job, cluster.index, config=config, start=False)
        except tf.errors.OpError as error:
            raise UsageError('the server cannot be started at %s; is the port in use?' % address) from error
        try:
            listener.restrict(int(port), ip)
        except OSError as error:
            print('warning: %s: the server listens on all addresses of this machine' % error)
        server.start()
        return server

    def _own_ip(self, host, port, address):
        """Returns the IP address of this task, having looked that its port is free and others can reach it."""
        cluster = self._cluster
        try:
            family, _, _, _, (ip, *_) = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((ip, port))
        except OSError as error:
            why = {errno.EADDRINUSE: 'the port is in use: does another task have this --task_index?',
                   errno.EADDRNOTAVAIL: 'that is no address of this machine'}.get(error.errno, error.strerror)
            raise UsageError('%s %d cannot listen at %s: %s' % (cluster.job, cluster.index, address, why)) from error
        elsewhere = {peer.rsplit(':', 1)[0] for peer in cluster.others().values()} - {host}
        if _is_loopback(ip) and not all(_is_loopback(peer.strip('[]')) for peer in elsewhere):
            raise UsageError('%s is %s here, which no other machine can reach; give the address in the network'
                             % (host, ip))
        return ip

    @property
    def target(self):
        """What a session of the chief's wants as its target."""
        return self._server.target

    def wait_for_peers(self):
        """Returns once the peers that this process needs can be reached, and watches them from then on.

        Raises:
          RunError: they cannot within five times the timeout.
        """
        limit = _START_FACTOR * self._timeout
        missing = peers.wait_for(self._watched, limit)
        if missing:
            raise RunError('%s cannot be reached after %d s; is it running, and is its address right?'
                           % (peers.listed({name: self._watched[name] for name in missing}), limit))
        self._watch = peers.Watch(self._watched, self._limit)

    def check_files(self, paths):
        """Looks that every worker has the chief's files, by their fingerprints.

        Raises:
          UsageError: one has not; it is named.
        """
        own = None
        for i, address in enumerate(self._cluster.workers if paths else ()):
            with tf.Graph().as_default(), tf.device('/job:worker/task:%d/cpu:0' % i):
                contents = [tf.decode_raw(tf.io.read_file(path), tf.uint8) for path in paths]
                prints = [(tf.size(each), tf.fingerprint(each[None])) for each in contents]
                try:
                    with self._session(('worker', i)) as session:
                        found = [(int(size), bytes(mark)) for size, mark in session.run(prints)]
                except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
                    raise UsageError('worker %d at %s cannot read the data: %s; give every worker the same --data_dir'
                                     % (i, address, reason(error))) from error
            own = own or found
            if found != own:
                path = next(path for path, one, other in zip(paths, own, found) if one != other)
                raise UsageError("worker %d at %s: its %s is not the chief's; copy the chief's data there"
                                 % (i, address, path))

    def serve(self):
        """Serves until the chief says that the training has ended.

        Raises:
          RunError: it ended with an error.
        """
        cluster = self._cluster
        with tf.Graph().as_default():
            ended = _end_queue(cluster.job, cluster.index).dequeue()
            with self._session((cluster.job, cluster.index)) as session:
                status = session.run(ended)
        self._watch.stop()
        if status:
            raise RunError('the chief, worker 0 at %s, ended with an error; its line says which' % cluster.workers[0])

    def tell_end(self, status):
        """Tells the other processes that the training has ended; those that are away find it out themselves."""
        if self._watch:
            self._watch.stop()
        for task, address in self._cluster.tasks.items():
            if task != (self._cluster.job, self._cluster.index) and peers.reachable(address):
                with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
                    told = _end_queue(*task).enqueue(status)
                    with self._session(task) as session:
                        session.run(told, options=tf.RunOptions(timeout_in_ms=10000))

    def _session(self, task):
        """Returns a session that talks to this process and one task, and waits for no other."""
        own = '/job:%s/task:%d' % (self._cluster.job, self._cluster.index)
        return tf.Session(self._server.target, config=tf.ConfigProto(device_filters=[own, '/job:%s/task:%d' % task]))


def _is_loopback(host):
    return host == 'localhost' or host.startswith('127.') or host == '::1'


def _end_queue(job, index):
    """Returns the queue through which the chief tells a task the status that the training ended with."""
    with tf.device('/job:%s/task:%d/cpu:0' % (job, index)):
        return tf.queue.FIFOQueue(1, tf.int32, shapes=[[]], shared_name='end_of_training')
