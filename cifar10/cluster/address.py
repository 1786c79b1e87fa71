"""Addresses of the form 'host:port': whether something listens there, which this machine has, what is connected."""
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
    """Returns whether something listens at 'host:port'. A process that is only stopped (SIGSTOP) still does."""
    try:
        peer_of(address, timeout)
        return True
    except OSError:
        return False


def peer_of(address: str, timeout: float = 1.0) -> str:
    """Returns the address of whoever listens at 'host:port', with its IP address; raises an OSError if nobody does."""
    with socket.create_connection(split_address(address), timeout) as connection:
        return _text(connection.getpeername())


def sockets() -> Iterator[socket.socket]:
    """Yields the sockets of this process, whoever has opened them."""
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):  # it may have been closed since it was listed
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    yield found


def shut_down(address: str) -> None:
    """Ends all connections of this process with an 'IP address:port', and so the calls that wait for an answer."""
    for connection in sockets():
        with contextlib.suppress(OSError):  # it is not connected, or no longer
            if connection.family in (socket.AF_INET, socket.AF_INET6) and _text(connection.getpeername()) == address:
                connection.shutdown(socket.SHUT_RDWR)


def _text(peer):
    ip = ipaddress.ip_address(peer[0].partition('%')[0])
    ip = getattr(ip, 'ipv4_mapped', None) or ip  # as a socket for both versions shows an IPv4 address
    return f'{ip}:{peer[1]}' if ip.version == 4 else f'[{ip}]:{peer[1]}'


def own_addresses(task: str, address: str, limit: float) -> list[str]:
    """Returns the IP addresses at which a task of this machine can listen, after checking its port.

    Args:
      task: its name, for messages.
      address: its 'host:port'.
      limit: seconds to wait until the host name resolves; a Kubernetes pod's resolves once the pod is ready.
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
            # A name may resolve to addresses of other machines too. A port in use is the more useful message.
            failure = error if failure is None or error.errno == errno.EADDRINUSE else failure
    if failure and (not local or failure.errno == errno.EADDRINUSE):
        why = {errno.EADDRINUSE: 'the port is in use; use another, or correct --task_index if another task has it too',
               errno.EADDRNOTAVAIL: 'that is not an address of this machine; correct it, or --task_index'}.get(
                   failure.errno, f'{failure.strerror}; use another address')
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
