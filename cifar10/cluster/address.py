"""Where a task of a cluster listens: the addresses of its host's name that are of this machine, on a free port."""
import errno
import socket
import time

from cifar10.cluster.membership import Cluster, split_address
from cifar10.errors import UsageError


def own_addresses(cluster: Cluster, limit: float) -> list[str]:
    """Returns the IP addresses of this task, having checked that its port is free and others can reach it.

    Args:
      cluster: a Cluster.
      limit: seconds in which the name of this task's host must become known; a pod's is only once it is ready.

    Raises:
      UsageError: it cannot listen there.
    """
    host, port = split_address(cluster.address)
    local, failure = [], None
    for family, _, _, _, (ip, *_) in _resolved(host, port, limit):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((ip, port))
            local.append(ip)
        except OSError as error:
            # A name may have addresses of other machines too; a port in use says more than that.
            failure = error if failure is None or error.errno == errno.EADDRINUSE else failure
    if failure and (not local or failure.errno == errno.EADDRINUSE):
        why = {errno.EADDRINUSE: 'the port is in use: does another task have this --task_index?',
               errno.EADDRNOTAVAIL: 'that is not an address of this machine'}.get(failure.errno, failure.strerror)
        raise UsageError(f'{cluster.job} {cluster.index} cannot listen at {cluster.address}: {why}') from failure
    elsewhere = {split_address(peer)[0] for peer in cluster.others().values()} - {host}
    if all(map(_is_loopback, local)) and not all(map(_is_loopback, elsewhere)):
        raise UsageError(f'{host} is {local[0]} here, which no other machine can reach; give the address in the '
                         'network')
    return local


def _resolved(host, port, limit):
    """Returns what `socket.getaddrinfo` knows of this task, within so many seconds."""
    begin, told = time.monotonic(), False
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (socket.gaierror, UnicodeError) as error:
            if time.monotonic() - begin > limit or isinstance(error, UnicodeError):
                cause = getattr(error, 'strerror', error)
                raise UsageError(f'{host}, the host of this task, cannot be resolved ({cause})') from error
            if not told:
                print(f'waiting    for the name {host} of this task to be known, up to {limit} s')
                told = True
        time.sleep(1)


def _is_loopback(host):
    return host == 'localhost' or host.startswith('127.') or host == '::1'
