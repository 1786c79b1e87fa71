"""Where a task of a cluster listens: those addresses of its host name that belong to this machine."""
import errno
import socket
import time

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.cluster.membership import Cluster, split_address


def own_addresses(cluster: Cluster, limit: float) -> list[str]:
    """Returns the IP addresses at which this task can listen, after checking its port and that others reach it.

    Args:
      cluster: the cluster that this process belongs to.
      limit: seconds to wait until the host name resolves; a Kubernetes pod's resolves once the pod is ready.
    """
    host, port = split_address(cluster.address)
    local = []
    failure = None
    for family, _, _, _, (ip, *_) in _resolved(host, port, limit):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((ip, port))
            local.append(ip)
        except OSError as error:
            # A name may resolve to addresses of other machines too. A port in use is the more useful message.
            failure = error if failure is None or error.errno == errno.EADDRINUSE else failure
    if failure and (not local or failure.errno == errno.EADDRINUSE):
        why = {errno.EADDRINUSE: 'the port is in use: does another task have this --task_index?',
               errno.EADDRNOTAVAIL: 'that is not an address of this machine'}.get(failure.errno, failure.strerror)
        raise UsageError(f'{cluster.job} {cluster.index} cannot listen at {cluster.address}: {why}') from failure
    other_hosts = {split_address(peer)[0] for peer in cluster.others().values()} - {host}
    if all(map(_is_loopback, local)) and not all(map(_is_loopback, other_hosts)):
        raise UsageError(f'{host} is {local[0]} here, which no other machine can reach; give its address in the '
                         'network')
    return local


def _resolved(host, port, limit):
    """Returns `socket.getaddrinfo` of this task's address, which is retried for up to `limit` seconds."""
    begin = time.monotonic()
    announced = False
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            if time.monotonic() - begin > limit or isinstance(error, UnicodeError):
                cause = getattr(error, 'strerror', error)
                raise UsageError(f'{host}, the host of this task, cannot be resolved ({cause})') from error
            if not announced:
                say(f"waiting    for this task's host name {host} to resolve, up to {limit} s")
                announced = True
        time.sleep(1)


def _is_loopback(host):
    return host == 'localhost' or host.startswith('127.') or host == '::1'
