"""Keeps a port of this process closed on all addresses but its own.

TensorFlow's server listens on every address of a machine, whatever address it is given, and has no
authentication. A filter on its listening socket makes Linux drop what comes for another address, before
a connection comes about. TensorFlow opens the socket itself, so a connection made in the milliseconds before
the filter is attached stays open.
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
    """Returns the filter, as classic BPF: accepts IP packets for some addresses alone.

    Args:
      addresses: IPv4 or IPv6 addresses, as text.
    """
    code = []
    for address in addresses:
        version = 6 if ':' in address else 4
        packed = socket.inet_pton(socket.AF_INET6 if version == 6 else socket.AF_INET, address.split('%')[0])
        words = struct.unpack(f'!{len(packed) // 4}I', packed)
        destination = 24 if version == 6 else 16  # where the header of this version has it
        # Each mismatch jumps to what follows the last line of this address: the next one, or the end.
        code += [(_LOAD_BYTE, 0, 0, _NETWORK_HEADER), (_SHIFT, 0, 0, 4), (_JUMP_EQUAL, 0, 2 * len(words) + 1, version)]
        for i, word in enumerate(words):
            code += [(_LOAD_WORD, 0, 0, _NETWORK_HEADER + destination + 4 * i),
                     (_JUMP_EQUAL, 0, 2 * (len(words) - i) - 1, word)]
        code.append((_RETURN, 0, 0, _ACCEPT))
    code.append((_RETURN, 0, 0, _DROP))
    return [struct.pack('HBBI', operation, yes, no, value & 0xffffffff) for operation, yes, no, value in code]


def restrict(port: int, addresses: Iterable[str]) -> None:
    """Lets this process's listening sockets of a port take connections to some addresses alone.

    Args:
      port: int.
      addresses: IPv4 or IPv6 addresses, as text.

    Raises:
      OSError: no socket listens there, or the kernel takes no filter.
    """
    code = program(addresses)
    memory = ctypes.create_string_buffer(b''.join(code))
    attached = 0
    for name in os.listdir('/proc/self/fd'):
        if not stat.S_ISSOCK(_mode(int(name))):
            continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as each:
            if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and each.getsockname()[1] == port:
                each.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER,
                                struct.pack('HL', len(code), ctypes.addressof(memory)))
                attached += 1
    if not attached:
        raise OSError(f'port {port} cannot be kept closed on other addresses')


def _mode(descriptor):
    try:
        return os.fstat(descriptor).st_mode
    except OSError:
        return 0  # closed since it was listed
