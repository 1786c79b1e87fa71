"""What this process does in a cluster: it runs a server, waits for the others, and ends when the training ends.

The chief (worker 0) builds the graph for the devices of all workers. The other processes run TensorFlow's
server and wait until the chief tells them that the training has ended.
"""
import contextlib
import itertools
import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, Question, doing, moved, present
from cifar10.base.console import say
from cifar10.base.errors import RunError, TemporaryError, UsageError, reason
from cifar10.base.signals import Termination
from cifar10.cluster import listener, watch
from cifar10.cluster.address import reachable, split_address
from cifar10.cluster.membership import Cluster
from cifar10.parallel import gpus
from cifar10.parallel.devices import Devices
from cifar10.parallel.session_config import LEADER, absent, session_config

# A first start may take this many times as long as a return after a loss: TensorFlow is imported, data are
# downloaded, a container image is pulled.
_START_FACTOR = 5
_ANSWER_SECS = 2  # a running TensorFlow server answers within this time; one of a busy machine, when asked again
_GREETING_SECS = 1  # between two greetings, and between two looks whether there is a new one
_HEARD_SECS = 10  # in which a greeting is read by a thread that has nothing else to do, also on a busy machine
_END_SECS = 10  # in which a peer can be told the end, which is tried once


def take_part(cluster: Cluster, local_devices: Devices, train: Callable, timeout: int, may_return: bool = True,
              files: Sequence[str] = (), termination: Termination | None = None, flags: Mapping[str, Any] | None = None,
              facts: Mapping[str, Any] | None = None) -> Any:
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
      facts: what may change the bits if it is not the same in all tasks, such as versions, by their names.

    Returns:
      What `train` returns; None in a process that does not call it.
    """
    say(f'task       {cluster.job} {cluster.index} at {cluster.address}; {len(cluster.workers)} workers, '
          f'{len(cluster.ps)} ps')
    if local_devices.on_gpus and local_devices.reason:  # how this task's environment selects them, which only it knows
        say(f'devices    {local_devices}')
    member = _Member(cluster, local_devices, timeout, may_return, dict(flags or {}), dict(facts or {}))
    try:
        if cluster.is_chief:
            return _lead(member, cluster, local_devices, train, files)
        member.wait_for_peers()
        if termination:
            termination.defer('when the chief has ended')
        member.serve()
        say('done       the training has ended')
        return None
    finally:
        member.leave()


def _lead(member, cluster, local_devices, train, files):
    """Trains as the chief, and tells the other tasks the end; returns what `train` returns."""
    status = RunError.status
    try:
        member.wait_for_peers()
        devices = local_devices.spread(len(cluster.workers), len(cluster.ps), member.target, member.unlike)
        member.check_devices(devices)
        member.check_files(files)
        with doing('outside the steps', OF_FIRST_STEP, member.questions):
            ended = train(devices, lambda: member.before_session(devices, files))
        status = 0
        return ended
    except TemporaryError as error:
        status = error.status
        raise
    finally:
        member.tell_end(status)


class _Member:
    """This process as a member of a cluster: its TensorFlow server, and its watch over the other processes.

    Its arguments are those of `take_part`.
    """

    def __init__(self, cluster, local_devices, timeout, may_return, flags, facts):
        self._cluster = cluster
        self._timeout = timeout
        self._return_limit = timeout if may_return else 0
        self._watch = None
        self._had_session = False
        self._server = self._start(local_devices)
        with tf.Graph().as_default(), self._own_session() as session:
            devices = [device.name for device in session.list_devices()]
        # What this process says of itself to the others, in a variable of its server.
        self._greeting = dict(cluster=[list(cluster.workers), list(cluster.ps)], process=secrets.token_hex(8),
                              devices=devices, flags=flags, facts=facts)
        self._greetings = {}  # task: what it said of itself when it was accepted
        self._last_doing = {}  # name of a task: what it was doing when it was last heard
        self._refused = set()  # processes that do not belong here
        self._left = threading.Event()
        self._threads = []
        self._start_thread(self._greet)
        # A server depends on the chief only, except where all processes compute an update together.
        if cluster.is_chief or not may_return:
            self._peers = cluster.others()
        else:
            self._peers = {'worker 0': cluster.workers[0]}

    def _start(self, local_devices):
        """Returns a running server that accepts only connections to this task's address, from other tasks if it can."""
        cluster = self._cluster
        port = split_address(cluster.address)[1]
        addresses = cluster.own_addresses(_START_FACTOR * self._timeout)
        gpus.claim(local_devices.num_gpus)
        _bypass_proxies(split_address(each)[0] for each in cluster.tasks.values())
        config = session_config(local_devices)
        config.experimental.collective_group_leader = LEADER
        jobs = {job: list(hosts) for job, hosts in (('worker', cluster.workers), ('ps', cluster.ps)) if hosts}
        try:
            server = tf.train.Server(jobs, cluster.job, cluster.index, config=config, start=False)
        except tf.errors.OpError as error:
            raise UsageError(f'the server cannot be started at {cluster.address}; is the port in use?') from error
        try:
            listener.restrict(port, addresses, [split_address(each)[0] for each in cluster.tasks.values()])
        except OSError as error:
            say(f'warning: {error}: the server listens on all addresses of this machine')
        server.start()
        for ip in addresses:
            own = f'[{ip}]:{port}'
            if not reachable(own, _ANSWER_SECS):
                raise UsageError(f'{cluster.job} {cluster.index} does not reach itself at {own}, so others will not '
                                 'either; does a firewall of this machine close that port?')
        return server

    @property
    def target(self):
        """The target of the chief's sessions: the address of its own server."""
        return self._server.target

    def wait_for_peers(self):
        """Waits until the peers that this process needs answer as TensorFlow servers, then watches them.

        The limit is five times the timeout.
        """
        self._wait(self._peers, _START_FACTOR * self._timeout)
        self._watch = watch.Watch(self._peers, self._return_limit, self._is_same)

    def _wait(self, peers, limit, announce=True):
        """Waits until peers {name: address} answer; raises a RunError after `limit` seconds."""
        def answers(name, address):
            if self._end_was_announced():
                return True
            if not reachable(address):
                return False
            try:
                greeting = self._read_greeting(_task(name), _ANSWER_SECS)
            except tf.errors.OpError:  # it may not have said anything of itself yet
                return False
            return self._accepts(_task(name), address, greeting)
        with doing('while it waits for other processes', math.inf):  # which `limit` ends
            missing = watch.wait_for(peers, limit, answers, announce)
        if missing:
            name, address = next(iter(missing.items()))
            if reachable(address):
                raise RunError(f'something listens at {address}, but does not answer as {name} of this cluster '
                               f'within {limit} s: is it another program, is it stopped, or was it started with '
                               'other hosts?')
            raise TemporaryError(f'{watch.listed(missing)} cannot be reached after {limit} s; is it running, and is '
                                 'its address right?')

    def _start_thread(self, function):
        self._threads.append(threading.Thread(target=function, daemon=True))
        self._threads[-1].start()

    def leave(self):
        """Ends the threads: the end of Python would abort one that is within TensorFlow."""
        self._left.set()
        for thread in self._threads:
            thread.join(_END_SECS)

    def _greet(self):
        """Renews the greeting until the end: a server answers even where no Python runs any more."""
        with tf.Graph().as_default():
            text = tf.placeholder(tf.string, [])
            handle = _greeting_variable(self._cluster.job, self._cluster.index)
            publish = tf.raw_ops.AssignVariableOp(resource=handle, value=text)
            with self._own_session() as session:
                for count in itertools.count():
                    greeting = dict(self._greeting, count=count, doing=present())
                    session.run(publish, {text: json.dumps(greeting)})
                    if self._left.wait(_GREETING_SECS):
                        return

    def _read_greeting(self, task, seconds):
        """Returns what a task says of itself; raises an OpError if it does not answer in time, or has said nothing."""
        with tf.Graph().as_default():
            text = tf.raw_ops.ReadVariableOp(resource=_greeting_variable(*task), dtype=tf.string)
            with self._session(task, seconds) as session:
                return json.loads(session.run(text))

    def _accepts(self, task, address, greeting):
        """Returns whether a task is one to work with; if not, the chief raises a UsageError before the first session.

        Later it waits for another in its place, as the other tasks always do: theirs may be the right cluster.
        """
        try:
            self._refuse_stranger(task, address, greeting)
        except UsageError as error:
            if self._cluster.is_chief and not self._had_session:
                raise
            if greeting['process'] not in self._refused:
                self._refused.add(greeting['process'])
                say(f'warning: {error}')
            return False
        self._greetings[task] = greeting
        return True

    def _refuse_stranger(self, task, address, greeting):
        """Raises a UsageError if a task belongs to another cluster or has other flags; says which facts differ."""
        name = '{} {}'.format(*task)
        if greeting['cluster'] != self._greeting['cluster']:
            workers, ps = (','.join(hosts) or 'none' for hosts in greeting['cluster'])
            raise UsageError(f'{name} at {address} belongs to another cluster, with the workers {workers} and the ps '
                             f'{ps}; correct the hosts, here or there')
        if not self._cluster.is_chief:  # which compares the flags of all, and tells them the end
            return
        for flag, value in self._greeting['flags'].items():
            other = greeting['flags'].get(flag, value)
            if other != value:
                raise UsageError(f'{name} at {address} has --{flag}={other}, and this task --{flag}={value}; start all '
                                 'tasks with the same flags')
        if greeting['process'] != self._greetings.get(task, {}).get('process'):
            for fact, other in self._other_facts(greeting).items():
                say(f"warning: {name} at {address} has {fact} {other}, and the chief {self._greeting['facts'][fact]}; "
                    'steps may have other bits than on machines that are alike')

    def _other_facts(self, greeting):
        """Returns the facts of a task that are not those of this one. A ps beside GPUs says nothing of any."""
        own, others = self._greeting['facts'], greeting['facts']
        return {fact: others[fact] for fact in own if others.get(fact, own[fact]) != own[fact]}

    def unlike(self):
        """Returns the present facts of other tasks that are not the chief's: {'threads of worker 1': '2'}."""
        return {f'{fact} of {job} {index}': str(other) for (job, index), greeting in self._greetings.items()
                for fact, other in self._other_facts(greeting).items()}

    def _is_same(self, name):
        """Returns whether a peer that is back is the process that it was."""
        with contextlib.suppress(tf.errors.OpError, KeyError):
            now = self._read_greeting(_task(name), _ANSWER_SECS)
            return now['process'] == self._greetings[_task(name)]['process']
        return False

    def _end_was_announced(self):
        """Returns whether the chief has announced the end; it may be gone before this process has reached it."""
        cluster = self._cluster
        if cluster.is_chief:
            return False
        with tf.Graph().as_default():
            size = _end_queue(cluster.job, cluster.index).size()
            with self._own_session() as session:
                return session.run(size) > 0

    def _own_session(self):
        """Returns a session of the current graph on the devices of this task alone."""
        own = f'/job:{self._cluster.job}/task:{self._cluster.index}'
        return tf.Session(self._server.target, config=tf.ConfigProto(device_filters=[own]))

    def check_devices(self, devices):
        """Checks that every worker has the devices of its towers: soft placement would silently use others.

        It takes what they have said last. A worker that has been lost since then is waited for before a session.
        """
        for i, address in enumerate(self._cluster.workers):
            reported = self._greetings.get(('worker', i), self._greeting)['devices']  # the chief is worker 0
            task = f'/job:worker/task:{i}/'
            missing = [name for name in absent(devices, reported) if name.startswith(task)]
            if missing:
                raise UsageError(
                    f"worker {i} at {address} has {' '.join(_short(name) for name in reported if 'PU:' in name)}, "
                    f"but not the chief's {' '.join(map(_short, missing))}; start all workers with the same "
                    '--num_gpus and --tower_device')

    def before_session(self, devices, files):
        """Waits until every task answers, because making a session has no time limit, and checks it.

        It waits as long as a lost peer may take to come back. A peer may come back with other devices or other data;
        raises a RunError then. The data were checked before the first session.
        """
        self._wait(self._cluster.others(), self._timeout, announce=False)
        try:
            self.check_devices(devices)
            self.check_files(files if self._had_session else ())
        except UsageError as error:
            raise RunError(str(error)) from error
        self._had_session = True

    def check_files(self, paths):
        """Checks by size and fingerprint that every worker has the same files as the chief."""
        chiefs_prints = None
        for i, address in enumerate(self._cluster.workers if paths else ()):
            with tf.Graph().as_default(), tf.device(f'/job:worker/task:{i}/cpu:0'):
                contents = [tf.decode_raw(tf.io.read_file(path), tf.uint8) for path in paths]
                prints = [(tf.size(content), tf.fingerprint(content[None])) for content in contents]
                try:
                    with self._session(('worker', i), _START_FACTOR * self._timeout) as session:
                        worker_prints = [(int(size), bytes(digest)) for size, digest in session.run(prints)]
                except (tf.errors.NotFoundError, tf.errors.PermissionDeniedError) as error:
                    raise UsageError(f'worker {i} at {address} cannot read the data: {reason(error)}; '
                                     'give every worker the same --data_dir') from error
                except tf.errors.OpError as error:
                    raise TemporaryError(f'worker {i} at {address} does not answer: {reason(error)}') from error
            if chiefs_prints is None:  # the chief is worker 0
                chiefs_prints = worker_prints
            if worker_prints != chiefs_prints:
                path = next(path for path, one, other in zip(paths, chiefs_prints, worker_prints) if one != other)
                raise UsageError(f"worker {i} at {address}: its {path} differs from the chief's; copy the chief's data "
                                 'there')

    def serve(self):
        """Serves until the chief announces the end of the training; raises a RunError if it failed."""
        cluster = self._cluster
        with tf.Graph().as_default():
            ended = _end_queue(cluster.job, cluster.index).dequeue()
            with self._own_session() as session, doing('while the chief trains', 1, self.questions):
                self._start_thread(self._hear)
                status = session.run(ended)
        self._watch.stop()
        if status:
            error = TemporaryError if status == TemporaryError.status else RunError
            raise error(f'the chief, worker 0 at {cluster.workers[0]}, ended with an error; see its output')

    def questions(self):
        """Returns the Questions whether the peers answer, in one group."""
        def question(name, address):
            subject = f'{name} ({address})'

            def silence():
                last = self._last_doing.get(name)
                return f"{subject} does not answer{f' (last heard {last})' if last else ''}"
            return Question(subject, lambda: self._answers(name), silence)
        return [[question(*peer) for peer in self._peers.items()]]

    def _answers(self, name):
        """Returns whether Python runs in a peer: it has renewed its greeting, and not just its server answers."""
        first = self._heard(name)
        for _ in range(_HEARD_SECS):
            time.sleep(_GREETING_SECS)
            if self._heard(name) not in (None, first):
                return True
        return False

    def _heard(self, name):
        """Returns which greeting of a peer is the newest, or None if its server does not answer."""
        with contextlib.suppress(tf.errors.OpError):
            greeting = self._read_greeting(_task(name), _HEARD_SECS)
            self._last_doing[name] = greeting['doing']
            return greeting['process'], greeting['count']

    def _hear(self):
        """Moves whenever the chief has renewed its greeting."""
        last = None
        while not self._left.wait(_GREETING_SECS):
            newest = self._heard('worker 0')
            if newest not in (None, last):
                moved()
                last = newest

    def tell_end(self, status):
        """Tells the other processes that the training has ended, with 0 if it succeeded, else with the error's status.

        Those that are away learn it from their watch.
        """
        if self._watch:
            self._watch.stop()
        for task, address in self._cluster.tasks.items():
            if task != (self._cluster.job, self._cluster.index) and reachable(address):
                with contextlib.suppress(tf.errors.OpError), tf.Graph().as_default():
                    if self._read_greeting(task, _END_SECS)['cluster'] != self._greeting['cluster']:
                        continue  # it works for somebody else
                    announcement = _end_queue(*task).enqueue(status)
                    with self._session(task, _END_SECS) as session:
                        session.run(announcement)

    @contextlib.contextmanager
    def _session(self, task, seconds):
        """Context with a session with one task's own server, which does not wait for any other task.

        It is made by a call over the network, which has a time limit. A session with this process's own
        server that uses another task's devices would wait without a limit.

        Args:
          task: (job, index).
          seconds: time limit of making the session, of each run, after which a DeadlineExceededError is raised, and of
            closing it.
        """
        # A server always has its own devices. This filter excludes all others, which it would wait for.
        config = tf.ConfigProto(device_filters=['/job:none'], operation_timeout_in_ms=1000 * seconds)
        session = tf.Session('grpc://' + self._cluster.tasks[task], config=config)
        try:
            yield session
        finally:
            # After an error, a `tf.Session` used as a context closes in a thread of its own, which shows a traceback.
            with contextlib.suppress(tf.errors.OpError):
                session.close()


def _bypass_proxies(hosts):
    """Keeps gRPC from connecting to hosts through a proxy such as `https_proxy`, which it reads at each connection.

    It compares the end of a host with each entry of `no_grpc_proxy` or, only where that is not set, of `no_proxy`.
    """
    kept = os.environ.get('no_grpc_proxy', os.environ.get('no_proxy', ''))
    os.environ['no_grpc_proxy'] = ','.join(dict.fromkeys([*filter(None, kept.split(',')), *hosts]))


def _short(name):
    """Returns the last part of a device's full name: 'CPU:0'."""
    return name.rsplit('/', 1)[1].upper().removeprefix('DEVICE:')


def _task(name):
    """Returns (job, index) of a task's name."""
    job, index = name.split()
    return job, int(index)


def _greeting_variable(job, index):
    """Returns the handle of the variable in which a task says of itself what it is."""
    with tf.device(f'/job:{job}/task:{index}/cpu:0'):
        return tf.raw_ops.VarHandleOp(dtype=tf.string, shape=[], shared_name='greeting')


def _end_queue(job, index):
    """Returns a task's queue, in which the chief puts the status that the training ended with."""
    with tf.device(f'/job:{job}/task:{index}/cpu:0'):
        return tf.queue.FIFOQueue(1, tf.int32, shapes=[[]], shared_name='end_of_training')
