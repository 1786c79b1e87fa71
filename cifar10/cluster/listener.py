"""Keeps the port of a TensorFlow server closed on all addresses but its own.

The server listens on every address of the machine, whatever address it is given, and has no authentication. A
filter on its listening socket makes Linux drop packets for other addresses before a connection is made.
TensorFlow opens the socket itself, so a connection made in the milliseconds before the filter is attached
stays open.
"""
import contextlib
import ctypes
import os
import socket
import stat
import struct
from collections.abc import Iterable

_SO_ATTACH_FILTER = 26  # asm-generic/socket.h
_NETWORK_HEADER = -0x100000  # linux/filter.h: SKF_NET_OFF
_ACCEPT, _DROP = 0xffffffff, 0
# Classic BPF instructions (linux/bpf_common.h): load a byte, load a word, shift right, jump if equal, return.
_LOAD_BYTE, _LOAD_WORD, _SHIFT, _JUMP_EQUAL, _RETURN = 0x30, 0x20, 0x74, 0x15, 0x06


def program(addresses: Iterable[str]) -> list[bytes]:
    """Returns a classic BPF filter that accepts only IP packets to the given IPv4 or IPv6 addresses."""
    code = []
    for address in addresses:
        version = 6 if ':' in address else 4
        packed = socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, address.split('%')[0])
        words = struct.unpack(f'!{len(packed) // 4}I', packed)
        destination = 24 if version == 6 else 16  # offset of the destination address in the IP header
        # A mismatch jumps past the last instruction of this address: to the next address, or to the end.
        code += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER),
                 (_SHIFT, 0, 0, 4),  # the version is in the upper half of the first byte
                 (_JUMP_EQUAL, 0, 2 * len(words) + 1, version)]
        for i, word in enumerate(words):
            code += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + destination + 4 * i),
                     (_JUMP_EQUAL, 0, 2 * (len(words) - i) - 1, word)]
        code.append((_RETURN, 0, 0, _ACCEPT))
    code.append((_RETURN, 0, 0, _DROP))
    return [struct.pack('HBBI', operation, if_true, if_false, value & 0xffffffff)
            for operation, if_true, if_false, value in code]


def restrict(port: int, addresses: Iterable[str]) -> None:
    """Makes this process's listening sockets on a port accept only connections to the given IP addresses.

    Raises:
      OSError: no socket listens on the port, or the kernel does not accept the filter.
    """
    code = program(addresses)
    memory = ctypes.create_string_buffer(b''.join(code))
    attached = 0
    for name in os.listdir('/proc/self/fd'):
        if not stat.S_ISSOCK(_mode(int(name))):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as listener:
            is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if is_listening and listener.getsockname()[1] == port:
                listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                                    struct.pack('HL', len(code), ctypes.addressof(memory)))
                attached += 1
    if not attached:
        raise OSError(f'port {port} cannot be kept closed on other addresses')


def _mode(descriptor):
    """Returns the file mode of a descriptor, or 0 if it has been closed since it was listed."""
    try:
        return os.fstat(descriptor).st_mode
    except OSError:
        return 0
