"""Keeps the port of a TensorFlow server closed to all but the machines of its cluster.

The server listens on every address of the machine, whatever address it is given, and has no authentication. A
filter on its listening socket makes Linux drop all other packets before a connection is made. TensorFlow opens the
socket itself, so a connection made in the milliseconds before the filter is attached stays open. The filter does not
keep out a machine that sends packets with another machine's address. A host name stands for its present addresses:
a container that is started again may have another one.
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

_RESOLVE_SECS = 5  # between two looks at the addresses of host names
_KEEPALIVE_SECS = 60  # after which an idle connection is used, so that no firewall in between forgets it
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_PROTOCOL = -0x1000  # linux/filter.h: SKF_AD_OFF + SKF_AD_PROTOCOL
_NETWORK_HEADER = -0x100000  # linux/filter.h: SKF_NET_OFF
_IP = {4: 0x0800, 6: 0x86dd}  # linux/if_ether.h: the protocols
_SOURCE, _DESTINATION = {4: 12, 6: 8}, {4: 16, 6: 24}  # offsets of the addresses in the headers of IPv4 and IPv6
_ACCEPT, _DROP = 0xffffffff, 0
# Classic BPF instructions (linux/bpf_common.h): load a word, jump, jump if equal, return.
_LOAD, _JUMP, _JUMP_EQUAL, _RETURN = 0x20, 0x05, 0x15, 0x06


def program(addresses: Collection[str], peers: Collection[str]) -> list[bytes]:
    """Returns a classic BPF filter that accepts only some IP packets.

    Args:
      addresses: the IPv4 and IPv6 addresses of this machine that packets are accepted to.
      peers: the addresses that packets are accepted from, besides these.
    """
    return [*_only(_DESTINATION, addresses), *_only(_SOURCE, [*addresses, *peers]), _instruction(_RETURN, _ACCEPT)]


def _only(offsets, addresses):
    """Returns instructions that drop a packet unless it has one of some addresses at an offset in its header."""
    # From the end, so that the distance of a jump over what follows is known.
    code = [_instruction(_RETURN, _DROP)]
    for address in dict.fromkeys(addresses):
        ip = _ip(address)
        words = struct.unpack(f'!{len(ip.packed) // 4}I', ip.packed)
        tests = [(_PROTOCOL, _IP[ip.version]),
                 *((_NETWORK_HEADER + offsets[ip.version] + 4 * i, word) for i, word in enumerate(words))]
        one = [_instruction(_JUMP, len(code))]
        for offset, word in reversed(tests):
            one = [_instruction(_LOAD, offset), _instruction(_JUMP_EQUAL, word, if_false=len(one)), *one]
        code = one + code
    return code


def _instruction(operation, value, if_false=0):
    """Returns an instruction; `if_false` is how many a comparison skips, and a jump skips `value`."""
    return struct.pack('HBBI', operation, 0, if_false, value & 0xffffffff)


def _ip(address):
    return ipaddress.ip_address(address.partition('%')[0])


def resolved(hosts: Collection[str], known: Mapping[str, Collection[str]] | None = None) -> dict[str, list[str]]:
    """Returns the IP addresses of hosts by their names; known ones of a host that cannot be resolved now."""
    found = dict(known or {})
    for host in hosts:
        with contextlib.suppress(OSError):
            found[host] = sorted({place[0] for *_, place in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)})
    return found


def restrict_to_hosts(port: int, addresses: Collection[str], hosts: Collection[str],
                      found: Mapping[str, Collection[str]]) -> None:
    """Restricts a port to the addresses of hosts, also to those that a host name will have later.

    Args:
      port, addresses: as for `restrict`.
      found: what `resolved` has returned for the hosts, before the port was opened.

    Raises:
      OSError: as `restrict` does.
    """
    def follow(before):
        while True:
            time.sleep(_RESOLVE_SECS)
            now = resolved(hosts, before)
            if now != before:
                with contextlib.suppress(OSError):
                    restrict(port, addresses, sum(now.values(), []))
                    before = now
    restrict(port, addresses, sum(found.values(), []))
    threading.Thread(target=follow, args=[found], daemon=True).start()


def restrict(port: int, addresses: Collection[str], peers: Collection[str]) -> None:
    """Makes this process's listening sockets on a port accept only connections as `program` describes, and keep them.

    Raises:
      OSError: no socket listens on the port, or the kernel does not accept the filter.
    """
    code = program(addresses, peers)
    memory = ctypes.create_string_buffer(b''.join(code))
    attached = 0
    for listener in sockets():
        is_listening = False
        with contextlib.suppress(OSError):  # it is of another kind
            is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if is_listening and listener.getsockname()[1] == port:
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                                struct.pack('HL', len(code), ctypes.addressof(memory)))
            # The sockets of its connections inherit it.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECS)
            attached += 1
    if not attached:
        raise OSError(f'port {port} cannot be kept closed on other addresses')
