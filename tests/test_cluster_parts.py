"""The parts of a cluster: its members, the addresses that a task listens at, and the watch over its peers."""
import contextlib
import errno
import json
import os
import socket
import threading
import time

import pytest

from cifar10.base.errors import UsageError
from cifar10.cluster import address, listener, membership, watch
from cifar10.cluster.address import reachable
from cifar10.cluster.server import Server
from cifar10.parallel.devices import choose
from cifar10.settings.training import train_settings
from tests.helpers import patient, python

SECONDS = patient(60)  # limit of one run in this file


def config(**changes):
    return train_settings(**changes).cluster


def test_tf_config_describes_a_cluster(monkeypatch):
    jobs = dict(chief=['a:1'], worker=['b:2', 'c:3'], ps=['d:4'])
    for task, expected in ((('chief', 0), ('worker', 0)), (('worker', 1), ('worker', 2)), (('ps', 0), ('ps', 0))):
        monkeypatch.setenv('TF_CONFIG', json.dumps(dict(cluster=jobs, task=dict(type=task[0], index=task[1]))))
        cluster = membership.resolve(config())
        assert (cluster.job, cluster.index) == expected and cluster.is_chief == (expected == ('worker', 0))
        assert cluster.workers == ('a:1', 'b:2', 'c:3') and cluster.ps == ('d:4',)
    flags = membership.resolve(config(job_name='worker', worker_hosts='x:1,y:2', task_index=1))  # flags take precedence
    assert flags.workers == ('x:1', 'y:2') and flags.others() == {'worker 0': 'x:1'}


def test_spaces_around_addresses_are_ignored():
    cluster = membership.resolve(config(job_name='worker', worker_hosts='a:1, b:2 ', ps_hosts=' [::1]:3', task_index=1))
    assert cluster.workers == ('a:1', 'b:2') and cluster.ps == ('[::1]:3',)
    assert address.split_address(cluster.ps[0]) == ('::1', 3)


@pytest.mark.parametrize('text', [
    None, '{}', '{"task": {"type": "worker", "index": 0}}'])
def test_tf_config_without_a_cluster_means_a_single_machine(text, monkeypatch):
    monkeypatch.delenv('TF_CONFIG', raising=False)
    if text is not None:
        monkeypatch.setenv('TF_CONFIG', text)
    assert membership.resolve(config()) is None


@pytest.fixture
def alone():
    """A function that returns the own addresses of the only task of a cluster."""
    def make(name, limit=5):
        return membership.Cluster((name,), (), 'worker', 0).own_addresses(limit)
    return make


def test_a_name_with_several_addresses_listens_at_each_local_address(alone, free_addresses, monkeypatch):
    answers = [(socket.AF_INET6, 1, 6, '', ('::1', 1, 0, 0)), (socket.AF_INET, 1, 6, '', ('127.0.0.1', 1)),
               (socket.AF_INET, 1, 6, '', ('192.0.2.77', 1))]
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *arguments, **options: answers)
    port = free_addresses(1)[0].rsplit(':', 1)[1]
    assert alone('localhost:' + port) == ['::1', '127.0.0.1']


def test_an_unresolved_name_is_waited_for(alone, monkeypatch, capsys):
    known, resolve = iter([False, True]), socket.getaddrinfo

    def getaddrinfo(host, port, **options):
        if not next(known):
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return resolve('127.0.0.1', port, **options)
    monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)
    assert alone('pod-0.cifar10:2222') == ['127.0.0.1']
    assert "waiting    for this task's host name pod-0.cifar10 to resolve, up to 5 s" in capsys.readouterr().out


def test_a_name_that_stays_unresolved_is_reported_after_the_limit(alone):
    with pytest.raises(UsageError, match='nowhere.invalid, the host of this task, cannot be resolved'):
        alone('nowhere.invalid:2222', limit=0)


@pytest.mark.parametrize('text', [
    '{', '[]', '{"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator"}}',
    '{"cluster": {"worker": {"0": "a:1"}}, "task": {"type": "worker"}}'])
def test_an_invalid_tf_config_is_reported(text, monkeypatch):
    monkeypatch.setenv('TF_CONFIG', text)
    with pytest.raises(UsageError, match='TF_CONFIG'):
        membership.resolve(config())


@pytest.mark.parametrize('job, task', [('workers', 'worker'), ('PS', 'PS')])
def test_an_unknown_job_in_tf_config_is_refused_by_name(job, task, monkeypatch):
    jobs = {'chief': ['a:1'], 'worker': ['d:1'], 'ps': ['e:1'], 'evaluator': ['f:1'], job: ['b:1']}
    monkeypatch.setenv('TF_CONFIG', json.dumps(dict(cluster=jobs, task=dict(type=task, index=0))))
    with pytest.raises(UsageError, match=f'^TF_CONFIG: the job {job} is not supported; use chief, worker or ps$'):
        membership.resolve(config())


@pytest.mark.parametrize('family, everywhere, own, others', [
    (socket.AF_INET, '0.0.0.0', ['127.0.0.1'], ['127.0.0.2']),
    (socket.AF_INET6, '::', ['127.0.0.1'], ['127.0.0.2', '::1']), (socket.AF_INET6, '::', ['::1'], ['127.0.0.1']),
    (socket.AF_INET6, '::', ['127.0.0.3', '::1', '127.0.0.1'], ['127.0.0.2'])])
def test_a_port_accepts_only_the_given_addresses(family, everywhere, own, others):
    with socket.socket(family) as server:
        if family == socket.AF_INET6:
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.bind((everywhere, 0))
        server.listen()
        port = server.getsockname()[1]
        before = os.listdir('/proc/self/fd')
        listener.restrict(port, own, own)
        assert os.listdir('/proc/self/fd') == before
        assert all(reachable(f'{address}:{port}') for address in own)
        with server.accept()[0] as connection:  # firewalls forget connections that are idle for minutes
            assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) < 120
        assert not any(reachable(f'{other}:{port}', 0.3) for other in others)
        with pytest.raises(OSError, match='no socket listens'):
            listener.restrict(1, own, own)




def test_a_port_follows_the_current_addresses_of_a_host_name(monkeypatch):
    resolve, pod = socket.getaddrinfo, []

    def getaddrinfo(host, *arguments, **options):
        if host != 'pod-1.cifar10':
            return resolve(host, *arguments, **options)
        if not pod:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return [each for address in pod for each in resolve(address, *arguments, **options)]
    monkeypatch.setattr(socket, 'getaddrinfo', getaddrinfo)
    monkeypatch.setattr(listener, '_RESOLVE_SECS', 0.1)

    def sources(port):
        found = []
        for source in ('127.0.0.1', '127.0.0.2', '127.0.0.3'):
            with contextlib.suppress(OSError):
                socket.create_connection(('127.0.0.1', port), 0.1, (source, 0)).close()
                found.append(source)
        return found

    def sources_become(port, expected):
        limit = time.monotonic() + SECONDS
        while sources(port) != expected:
            assert time.monotonic() < limit
    hosts = {'127.0.0.1', 'pod-1.cifar10'}
    with socket.create_server(('', 0), backlog=100) as server:
        port = server.getsockname()[1]
        listener.restrict_to_hosts(port, ['127.0.0.1'], hosts, listener.resolved(hosts))
        assert sources(port) == ['127.0.0.1']
        pod.append('127.0.0.2')
        sources_become(port, ['127.0.0.1', '127.0.0.2'])
        pod[:] = ['127.0.0.3']
        sources_become(port, ['127.0.0.1', '127.0.0.3'])
        pod.clear()  # simulates an outage of the name service
        time.sleep(0.4)
        assert sources(port) == ['127.0.0.1', '127.0.0.3']


def test_a_task_without_a_packet_filter_serves_only_if_the_user_allows_it(free_addresses, monkeypatch):
    def refuse(*arguments):
        raise PermissionError(errno.EPERM, 'Operation not permitted')
    monkeypatch.setattr(listener, 'restrict', refuse)
    first, second = (membership.Cluster((address,), (), 'worker', 0) for address in free_addresses(2))
    with pytest.raises(UsageError, match='the system refuses a filter .*--port_filter=false'):
        Server(first, choose(1, 'cpu'), 5, port_filter=True)
    assert Server(second, choose(1, 'cpu'), 5, port_filter=False).target


def test_stopping_a_watch_ends_its_thread(monkeypatch):
    # A running watch would end this process when a peer ends.
    asking, before = threading.Event(), threading.active_count()

    def answer_late(address):
        asking.set()
        time.sleep(0.5)
        return address
    monkeypatch.setattr(watch, 'peer_of', answer_late)
    watching = watch.Watch({'worker 1': '127.0.0.1:1'}, 0)
    assert asking.wait(SECONDS)
    watching.stop()
    assert threading.active_count() == before


def test_only_connections_with_the_given_peer_are_shut_down():
    code = '''
import socket
from cifar10.cluster.address import peer_of, shut_down
sockets = [socket.socket(), socket.socket(socket.AF_UNIX)]  # not connected
listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
ports = [each.getsockname()[1] for each in listening]
sockets += [socket.create_connection(("127.0.0.1", port)) for port in ports]
mapped = socket.socket(socket.AF_INET6)
mapped.connect(("::ffff:127.0.0.1", ports[0]))
shut_down(peer_of(f"localhost:{ports[0]}"))
sockets[-1].settimeout(0.1)
print(sockets[-2].recv(1), mapped.recv(1))
try:
    sockets[-1].recv(1)
except TimeoutError:
    print("still connected")
'''
    result = python('-c', code)
    assert (result.stdout, result.stderr) == ("b'' b''\nstill connected\n", '')


def test_a_watch_ends_its_process_even_if_nobody_reads_the_output(free_addresses):
    address, = free_addresses(1)
    code = ('import os, time; from cifar10.cluster.watch import Watch\n'
            'reading, writing = os.pipe(); os.dup2(writing, 1); os.close(reading); os.close(writing)\n'
            f'watch = Watch({{"worker 1": {address!r}}}, 1); time.sleep({SECONDS})')
    result = python('-c', code)
    assert result.returncode == 75 and result.stderr.count('\n') == 1
    assert f'worker 1 at {address} cannot be reached after 1 s' in result.stderr
