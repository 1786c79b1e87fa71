"""Keeps the port of a TensorFlow server closed to all but the machines of its cluster.

The server listens on every address of the machine, whatever address it is given, and has no authentication. A
filter on its listening socket makes Linux drop all other packets before a connection is made. TensorFlow opens the
socket itself, so a connection made in the milliseconds before the filter is attached stays open. It does not
keep out a machine of the same network that sends packets with another machine's address.
"""
import array
import contextlib
import ctypes
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Collection, Iterable

from cifar10.cluster.address import sockets

_KEEPALIVE_SECS = 60  # after which an idle connection is used, so that no firewall in between forgets it
_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_PROTOCOL, _INTERFACE = -0x1000, -0x1000 + 8  # linux/filter.h: SKF_AD_OFF and SKF_AD_PROTOCOL, SKF_AD_IFINDEX
_NETWORK_HEADER = -0x100000  # linux/filter.h: SKF_NET_OFF
_IP = {4: 0x0800, 6: 0x86dd}  # linux/if_ether.h: the protocols
_SOURCE, _DESTINATION = {4: 12, 6: 8}, {4: 16, 6: 24}  # offsets of the addresses in the headers of IPv4 and IPv6
_ACCEPT, _DROP = 0xffffffff, 0
# Classic BPF instructions (linux/bpf_common.h): load a word, jump, jump if equal, return.
_LOAD, _JUMP, _JUMP_EQUAL, _RETURN = 0x20, 0x05, 0x15, 0x06
_SIOCGIFCONF = 0x8912  # linux/sockios.h
_IFREQ_BYTES, _MOST_IFREQS = 40, 1024  # struct ifreq: 16 bytes of name, and a sockaddr


def program(addresses: Iterable[str], peers: Collection[str] = ()) -> list[bytes]:
    """Returns a classic BPF filter that accepts only IP packets to the given IPv4 or IPv6 addresses of this machine.

    They must come in on the interface of their destination, or from this machine.

    Args:
      addresses: of this machine.
      peers: the hosts that packets are accepted from, besides this machine; from all, if there is none or one is a
        name, whose addresses may change.
    """
    local = socket.if_nametoindex('lo')
    # It is built from its end, so that the distance of a jump over what follows is known.
    code = [_instruction(_RETURN, _DROP)]
    for address in dict.fromkeys(addresses):
        interface = _interface(address)
        tests = [*_has(_DESTINATION, address), *([(_INTERFACE, [local, interface])] if interface else [])]
        code = _block(tests, _instruction(_RETURN, _ACCEPT)) + code
    if peers and all(map(_is_address, peers)):
        sources = [_instruction(_RETURN, _DROP)]
        for tests in (*(_has(_SOURCE, peer) for peer in dict.fromkeys(peers)), [(_INTERFACE, [local])]):
            sources = _block(tests, _instruction(_JUMP, len(sources))) + sources
        code = sources + code
    return code


def _has(offsets, address):
    """Returns the tests whether a packet has an address at an offset in its header."""
    ip = _ip(address)
    words = struct.unpack(f'!{len(ip.packed) // 4}I', ip.packed)
    return [(_PROTOCOL, [_IP[ip.version]]),
            *((_NETWORK_HEADER + offsets[ip.version] + 4 * i, [word]) for i, word in enumerate(words))]


def _block(tests, last):
    """Returns instructions that come to the last one if a packet passes all tests, and otherwise skip it.

    A test is (offset, the words that a packet may have there).
    """
    code = [last]
    for offset, (word, *others) in reversed(tests):
        code = [_instruction(_JUMP_EQUAL, word, if_false=len(code)), *code]
        for skipped, other in enumerate(others, 1):
            code = [_instruction(_JUMP_EQUAL, other, if_true=skipped), *code]
        code = [_instruction(_LOAD, offset), *code]
    return code


def _instruction(operation, value, if_true=0, if_false=0):
    """Returns an instruction; `if_true` and `if_false` are how many a comparison skips, and a jump skips `value`."""
    return struct.pack('HBBI', operation, if_true, if_false, value & 0xffffffff)


def _is_address(host):
    try:
        return bool(_ip(host))
    except ValueError:
        return False


def _ip(address):
    return ipaddress.ip_address(address.partition('%')[0])


def _interface(address):
    """Returns the number of the interface that has an address, or None if packets to it may come in on any.

    That is so for an address that other machines reach although it is one of the loopback interface.
    """
    ip = _ip(address)
    if ip.is_loopback:
        return socket.if_nametoindex('lo')
    if ip.version == 6:
        with open('/proc/net/if_inet6') as stream:
            names = [line.split()[-1] for line in stream if line.startswith(ip.packed.hex())]
    else:
        requests = array.array('B', bytes(_IFREQ_BYTES * _MOST_IFREQS))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SIOCGIFCONF, struct.pack('iL', len(requests), requests.buffer_info()[0]))
        entries = [requests[i:i + 24].tobytes() for i in range(0, len(requests), _IFREQ_BYTES)]
        names = [entry.partition(b':')[0][:16].rstrip(b'\0').decode() for entry in entries if entry[20:] == ip.packed]
    return socket.if_nametoindex(names[0]) if names and names[0] != 'lo' else None


def restrict(port: int, addresses: Iterable[str], peers: Collection[str] = ()) -> None:
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
