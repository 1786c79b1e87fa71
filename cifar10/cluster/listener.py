"""Closes the port of a TensorFlow server to all machines outside its cluster.

The server ignores its given address: it listens on every address of the machine, without authentication. A filter on
its listening socket makes Linux drop packets from outside the cluster before a connection is made. TensorFlow opens the
socket itself, so a connection from the milliseconds before the filter is attached stays open. The filter does not
detect forged sender addresses. Host names are resolved repeatedly, because a restarted container may have a new
address.
"""
import contextlib
import ctypes
import ipaddress
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping

from cifar10.cluster.address import sockets

_RESOLVE_SECS = 5  # interval for resolving host names
_KEEPALIVE_SECS = 60  # idle time before a keep-alive packet, which keeps firewalls from dropping the connection
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_PROTOCOL = -0x1000  # linux/filter.h: SKF_AD_OFF + SKF_AD_PROTOCOL
_NETWORK_HEADER = -0x100000  # linux/filter.h: SKF_NET_OFF
_IP = {4: 0x0800, 6: 0x86dd}  # linux/if_ether.h: the protocols
_SOURCE, _DESTINATION = {4: 12, 6: 8}, {4: 16, 6: 24}  # offsets of the addresses in the headers of IPv4 and IPv6
_ACCEPT, _DROP = 0xffffffff, 0
# Classic BPF instructions (linux/bpf_common.h): load a word, jump, jump if equal, return.
_LOAD, _JUMP, _JUMP_EQUAL, _RETURN = 0x20, 0x05, 0x15, 0x06


def program(addresses: Collection[str], peers: Collection[str]) -> list[bytes]:
    """Returns a classic BPF filter that accepts IP packets by their addresses.

    Args:
      addresses: accepted destinations, IPv4 and IPv6 addresses of this machine.
      peers: accepted sources, in addition to `addresses`.
    """
    return [*_only(_DESTINATION, addresses), *_only(_SOURCE, [*addresses, *peers]), _instruction(_RETURN, _ACCEPT)]


def _only(offsets, addresses):
    """Returns instructions that drop a packet unless its header has one of `addresses` at an offset."""
    # Built from the end, because a jump needs the length of the following code.
    code = [_instruction(_RETURN, _DROP)]
    for address in dict.fromkeys(addresses):
        ip = _ip(address)
        words = struct.unpack(f'!{len(ip.packed) // 4}I', ip.packed)
        tests = [(_PROTOCOL, _IP[ip.version]),
                 *((_NETWORK_HEADER + offsets[ip.version] + 4 * i, word) for i, word in enumerate(words))]
        test = [_instruction(_JUMP, len(code))]
        for offset, word in reversed(tests):
            test = [_instruction(_LOAD, offset), _instruction(_JUMP_EQUAL, word, if_false=len(test)), *test]
        code = test + code
    return code


def _instruction(operation, value, if_false=0):
    """Returns an instruction; a comparison skips `if_false` instructions if it fails, and a jump skips `value`."""
    return struct.pack('HBBI', operation, 0, if_false, value & 0xffffffff)


def _ip(address):
    return ipaddress.ip_address(address.partition('%')[0])


def resolved(hosts: Collection[str], known: Mapping[str, list[str]] | None = None) -> dict[str, list[str]]:
    """Returns the IP addresses of hosts by name; if a name does not resolve, its `known` addresses."""
    addresses = dict(known or {})
    for host in hosts:
        with contextlib.suppress(OSError):
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            addresses[host] = sorted({str(info[4][0]) for info in found})
    return addresses


def restrict_to_hosts(port: int, addresses: Collection[str], hosts: Collection[str],
                      initial: Mapping[str, list[str]]) -> None:
    """Restricts a port to the addresses of hosts, and follows changes of the addresses.

    Args:
      port, addresses: as for `restrict`.
      hosts: names or addresses of the hosts.
      initial: the result of `resolved` for the hosts, from before the port was opened.

    Raises:
      OSError: as in `restrict`.
    """
    def follow(before):
        while True:
            time.sleep(_RESOLVE_SECS)
            now = resolved(hosts, before)
            if now != before:
                with contextlib.suppress(OSError):
                    restrict(port, addresses, sum(now.values(), []))
                    before = now
    restrict(port, addresses, sum(initial.values(), []))
    threading.Thread(target=follow, args=[initial], daemon=True).start()


def restrict(port: int, addresses: Collection[str], peers: Collection[str]) -> None:
    """Attaches the filter of `program` to this process's listening sockets on a port, and turns on keep-alive.

    Raises:
      OSError: no socket listens on the port, or the kernel refuses the filter.
    """
    code = program(addresses, peers)
    memory = ctypes.create_string_buffer(b''.join(code))
    attached = 0
    for listener in sockets():
        is_listening = False
        with contextlib.suppress(OSError):  # not a TCP socket
            is_listening = bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
        if is_listening and listener.getsockname()[1] == port:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                                struct.pack('HL', len(code), ctypes.addressof(memory)))
            # The sockets of connections inherit these options.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECS)
            attached += 1
    if not attached:
        raise OSError(f'no socket listens on port {port}')
