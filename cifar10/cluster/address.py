"""Addresses of the form 'host:port': listeners, this machine's addresses, and connections."""
import contextlib
import errno
import ipaddress
import os
import socket
import stat
import time
from collections.abc import Iterator

from cifar10.base.console import say
from cifar10.base.errors import UsageError


def split_address(address: str) -> tuple[str, int]:
    """Returns (host without brackets, port) of 'host:port' or '[IPv6 address]:port'."""
    host, _, port = address.rpartition(':')
    return host.strip('[]'), int(port)


def reachable(address: str, timeout: float = 1.0) -> bool:
    """Returns whether a process listens at 'host:port'. A stopped process (SIGSTOP) still listens."""
    try:
        peer_of(address, timeout)
        return True
    except OSError:
        return False


def peer_of(address: str, timeout: float = 1.0) -> str:
    """Returns the 'IP address:port' of the listener at 'host:port'; raises an OSError if there is none."""
    with socket.create_connection(split_address(address), timeout) as connection:
        return _text(connection.getpeername())


def sockets() -> Iterator[socket.socket]:
    """Yields all sockets of this process, including sockets of libraries."""
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):  # closed meanwhile
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as duplicate:
                    yield duplicate


def shut_down(address: str) -> None:
    """Ends all connections of this process to an 'IP address:port', and so the calls that wait for an answer."""
    for connection in sockets():
        with contextlib.suppress(OSError):  # not connected
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _text(connection.getpeername()) == address:
                connection.shutdown(socket.SHUT_RDWR)


def _text(peer):
    ip = ipaddress.ip_address(peer[0].partition('%')[0])
    ip = getattr(ip, 'ipv4_mapped', None) or ip  # a dual-stack socket shows IPv4 addresses in this form
    return f'{ip}:{peer[1]}' if ip.version == 4 else f'[{ip}]:{peer[1]}'


def own_addresses(task: str, address: str, limit: float) -> list[str]:
    """Returns the IP addresses at which a task of this machine can listen, after checking its port.

    Args:
      task: the task's name, for messages.
      address: the task's 'host:port'.
      limit: seconds to wait until the host name resolves; the name of a Kubernetes pod resolves once the pod is ready.
    """
    local = []
    failure = None
    for family, _, _, _, (ip, port, *_) in _resolved(*split_address(address), limit):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((ip, port))
            local.append(ip)
        except OSError as error:
            # A name may also resolve to addresses of other machines. A port in use is the more useful message.
            failure = error if failure is None or error.errno == errno.EADDRINUSE else failure
    if failure and (not local or failure.errno == errno.EADDRINUSE):
        why = {errno.EADDRINUSE: 'the port is in use; use another port, or correct --task_index',
               errno.EADDRNOTAVAIL: 'that is not an address of this machine; correct it, or --task_index'}.get(
                   failure.errno or 0, f'{failure.strerror}; use another address')
        raise UsageError(f'{task} cannot listen at {address}: {why}') from failure
    return local


def _resolved(host, port, limit):
    begin = time.monotonic()
    announced = False
    while True:
        try:
            return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            if time.monotonic() - begin > limit:
                raise UsageError(f'{host}, the host of this task, cannot be resolved ({error.strerror}); correct it '
                                 'in --worker_hosts, --ps_hosts or TF_CONFIG') from error
            if not announced:
                say('waiting', f"for this task's host name {host} to resolve, up to {limit} s")
                announced = True
        time.sleep(1)


def is_loopback(host: str) -> bool:
    """Returns whether a host is a loopback name or address, which no other machine can reach."""
    return host == 'localhost' or host.startswith('127.') or host == '::1'
