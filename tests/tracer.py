"""Runs a command and stops it on entering each system call that changes files below a folder, on Linux x86-64.

    python tests/tracer.py --root=FOLDER --log=FILE [--reads] [--snapshots=FOLDER]
        [--fail=N --errno=NUMBER [--always]] -- COMMAND ...

Each such call is a JSON line in the log. `--snapshots` copies the folder before each call to
FOLDER/<number of the call>.
`--fail=N` makes the N-th call fail with an error (0: a write of half its bytes), and with `--always` also all later
calls of the same name on a file of the same name. `--reads` includes calls that read files or open them for reading. A
seccomp filter passes only those calls to ptrace, so that the rest runs at full speed.
"""
import argparse
import ctypes
import json
import os
import re
import shutil
import signal
import struct
import sys

# Numbers of x86-64 (asm/unistd_64.h), and the arguments with a call's paths: (directory's argument or None, path's).
PATHS = {
    'open': (2, [(None, 0)]), 'creat': (85, [(None, 0)]), 'openat': (257, [(0, 1)]), 'truncate': (76, [(None, 0)]),
    'rename': (82, [(None, 0), (None, 1)]), 'renameat': (264, [(0, 1), (2, 3)]), 'renameat2': (316, [(0, 1), (2, 3)]),
    'unlink': (87, [(None, 0)]), 'unlinkat': (263, [(0, 1)]), 'rmdir': (84, [(None, 0)]), 'mkdir': (83, [(None, 0)]),
    'mkdirat': (258, [(0, 1)]), 'link': (86, [(None, 0), (None, 1)]), 'linkat': (265, [(0, 1), (2, 3)]),
    'symlink': (88, [(None, 1)]), 'symlinkat': (266, [(1, 2)])}
DESCRIPTORS = {'write': (1, 0), 'pwrite64': (18, 0), 'writev': (20, 0), 'ftruncate': (77, 0), 'fallocate': (285, 0),
               'sendfile': (40, 0), 'copy_file_range': (326, 2), 'fsync': (74, 0), 'fdatasync': (75, 0)}
READS = {'read': (0, 0), 'pread64': (17, 0)}
NAMES = {number: name for name, (number, _) in [*PATHS.items(), *DESCRIPTORS.items()]}
READING = {number: name for name, (number, _) in READS.items()}
CHANGING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC  # in the flags of an open file
ARGUMENTS = (14, 13, 12, 7, 9, 8)  # rdi, rsi, rdx, r10, r8, r9 in the words of user_regs_struct
RAX, RDX, ORIG_RAX = 10, 12, 15  # the registers of the result, of the third argument and of the call's number

TRACEME, GETREGS, SETREGS, CONT, SETOPTIONS = 0, 12, 13, 7, 0x4200
# Follow forks, clones and execs; stop at the filter's calls; end the traced processes with the tracer.
OPTIONS = 0x2 | 0x4 | 0x8 | 0x10 | 0x80 | 0x100000
EVENT_SECCOMP, WALL = 7, 0x40000000

libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long


def install_filter(reads):
    """Makes the kernel stop this process and its descendants on entering a call of the tables."""
    load_number, load_flags = (0x20, 0, 0, 0), {2: (0x20, 0, 0, 24), 257: (0x20, 0, 0, 32)}
    trace, allow = (0x06, 0, 0, 0x7ff00000), (0x06, 0, 0, 0x7fff0000)
    code = [load_number]
    for number in [*NAMES, *(READING if reads else ())]:
        if number in load_flags and not reads:  # calls that open for reading are not traced
            code += [(0x15, 0, 4, number), load_flags[number], (0x45, 0, 1, CHANGING), trace, allow]
        else:
            code += [(0x15, 0, 1, number), trace]
    code = b''.join(struct.pack('HBBI', *line) for line in [*code, allow])
    memory = ctypes.create_string_buffer(code)
    program = ctypes.create_string_buffer(struct.pack('HxxxxxxP', len(code) // 8, ctypes.addressof(memory)))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program)), 0, 0):
        os._exit(126)


def start(command, reads):
    """Starts the command, stopped at its first instruction; returns its process id."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        libc.ptrace(SETOPTIONS, pid, None, OPTIONS)
        libc.ptrace(CONT, pid, None, None)
        return pid
    if libc.ptrace(TRACEME, 0, None, None):
        os._exit(125)
    os.kill(os.getpid(), signal.SIGSTOP)
    install_filter(reads)
    os.execvp(command[0], command)


class Calls:
    """Inspects the entered calls, and counts the calls that change files below a folder."""

    def __init__(self, root, log, given):
        self.root, self.log, self.snapshots = os.path.realpath(root), log, given.snapshots
        self.reads, self.fail, self.errno, self.always = given.reads, given.fail, given.errno, given.always
        self.failing = None  # the failing calls: their name, and the names of their files
        self.count, self.buffer = 0, (ctypes.c_ulonglong * 27)()

    def entered(self, pid):
        """Handles a call of a stopped process."""
        if libc.ptrace(GETREGS, pid, None, ctypes.addressof(self.buffer)):
            return
        arguments = [self.buffer[i] for i in ARGUMENTS]
        name = NAMES.get(self.buffer[ORIG_RAX]) or READING.get(self.buffer[ORIG_RAX])
        paths = self.paths(pid, name, arguments)
        if not any(path == self.root or path.startswith(self.root + '/') for path in paths):
            return
        self.count += 1
        self.log.write(json.dumps([name, *(os.path.relpath(path, self.root) for path in paths)]) + '\n')
        self.log.flush()
        if self.snapshots and os.path.isdir(self.root):
            shutil.copytree(self.root, os.path.join(self.snapshots, str(self.count)), symlinks=True)
        if self.count == self.fail and self.always:
            self.failing = name, form(paths)
        if self.count == self.fail or self.failing == (name, form(paths)):
            self.spoil(pid)

    def spoil(self, pid):
        """Makes the entered call fail without any effect, or write half its bytes."""
        if self.errno:
            self.buffer[ORIG_RAX], self.buffer[RAX] = 2 ** 64 - 1, 2 ** 64 - self.errno
        else:
            self.buffer[RDX] -= self.buffer[RDX] // 2
        libc.ptrace(SETREGS, pid, None, ctypes.addressof(self.buffer))

    def paths(self, pid, name, arguments):
        """Returns the paths of a call's files."""
        try:
            if name in DESCRIPTORS or name in READS:
                argument = {**DESCRIPTORS, **READS}[name][1]
                return [os.readlink(f'/proc/{pid}/fd/{arguments[argument]}')]
            return [self.path(pid, arguments, *each) for each in PATHS[name][1]]
        except OSError:
            return []  # a closed descriptor or a missing path

    def path(self, pid, arguments, folder, path):
        descriptor = ctypes.c_int(arguments[folder]).value if folder is not None else -100  # AT_FDCWD
        base = os.readlink(f'/proc/{pid}/cwd' if descriptor == -100 else f'/proc/{pid}/fd/{descriptor}')
        with open(f'/proc/{pid}/mem', 'rb', buffering=0) as memory:
            memory.seek(arguments[path])
            text = b''
            while b'\0' not in text:  # a page at a time, because the next page may not exist
                text += memory.read(4096 - (arguments[path] + len(text)) % 4096)
        joined = os.path.join(base, os.fsdecode(text.split(b'\0')[0]))
        return os.path.join(os.path.realpath(os.path.dirname(joined)), os.path.basename(joined))


def form(paths):
    """Returns the names of files without their numbers and random parts."""
    return [re.sub(r'\.[a-z0-9_]{8}$|\d+', '', os.path.basename(path)) for path in paths]


def trace(command, calls):
    """Runs the command; returns its exit status as a shell does."""
    main, status = start(command, calls.reads), 1
    while True:
        try:
            pid, found = os.waitpid(-1, WALL)
        except ChildProcessError:
            return status
        if not os.WIFSTOPPED(found):
            if pid == main:
                status = os.waitstatus_to_exitcode(found)
            continue
        number, event = os.WSTOPSIG(found), found >> 16
        if event == EVENT_SECCOMP:
            calls.entered(pid)
        # A new thread stops once; all other signals are the command's own.
        passed_on = 0 if event or number in (signal.SIGTRAP, signal.SIGSTOP) else number
        libc.ptrace(CONT, pid, None, passed_on)


def main():
    """Reads the arguments and runs the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--root', required=True)
    parser.add_argument('--log', required=True)
    parser.add_argument('--snapshots')
    parser.add_argument('--reads', action='store_true')
    parser.add_argument('--fail', type=int)
    parser.add_argument('--errno', type=int)
    parser.add_argument('--always', action='store_true')
    parser.add_argument('command', nargs='+')
    given = parser.parse_args()
    with open(given.log, 'w') as log:
        status = trace(given.command, Calls(given.root, log, given))
    return 128 - status if status < 0 else status


if __name__ == '__main__':
    sys.exit(main())
