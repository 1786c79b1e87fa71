"""States of a folder after a kill or a power failure, from a process that is traced before each change."""
import dataclasses
import json
import os
import pathlib
import platform
import re
import subprocess
import sys

import pytest

from tests.helpers import ROOT, patient


@dataclasses.dataclass
class Traced:
    """A command that was traced to its end.

    Attributes:
      calls: name and paths in the folder of each system call that changed it.
      states: the folder's contents before each call, and at the end: {path: bytes}.
    """
    calls: list
    states: list


def command_of(*arguments):
    """Returns a command line of this project's Python."""
    return [sys.executable, *map(str, arguments)]


def run_traced(command, root, *options, log):
    """Runs a command under the tracer; returns its CompletedProcess."""
    if platform.machine() != 'x86_64':
        pytest.skip('the tracer knows the system calls of x86-64 only')
    result = subprocess.run([sys.executable, str(ROOT / 'tests' / 'tracer.py'), f'--root={root}', f'--log={log}',
                             *options, '--', *command], capture_output=True, text=True, timeout=patient(300), cwd=ROOT)
    if result.returncode == 125:
        pytest.skip('this system does not let processes be traced')
    return result


def trace(command, root, scratch):
    """Returns the Traced of a command, which must succeed; `scratch` is a new folder."""
    snapshots = scratch / 'snapshots'
    snapshots.mkdir(parents=True)
    result = run_traced(command, root, f'--snapshots={snapshots}', log=scratch / 'log')
    assert result.returncode == 0, result.stdout + result.stderr
    calls = [json.loads(line) for line in open(scratch / 'log')]
    states = [read_tree(snapshots / str(i + 1)) for i in range(len(calls))]
    return Traced(calls, [*states, read_tree(root)])


def read_tree(folder):
    """Returns {path: bytes} of a folder's files; bytes are None for subfolders."""
    folder = pathlib.Path(folder)
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
            for path in folder.rglob('*')}


def write_tree(folder, tree):
    """Makes a new folder with the files of a tree."""
    folder.mkdir(parents=True)
    for path, content in sorted(tree.items()):
        if content is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    return folder


def names(folder):
    """Returns the sorted names in a folder; event files, whose number and names vary, count as one."""
    return sorted({re.sub(r'events\.out.*', 'events', path) for path in read_tree(folder)})


def power_failures(traced):
    """Yields (number of the call, {path: bytes}) for possible states after a power failure before each call.

    Files and folder entries that an fsync covers keep their state at that call. Any other file may have its bytes, its
    bytes at the last fsync, or a torn write: the new first half, the new second half after zero bytes, or only zero
    bytes. A rename may be undone. Each fault occurs alone, and all together. These are the faults of LazyFS
    (https://github.com/dsrhaslab/lazyfs): cleared caches, and torn writes.
    """
    disk = _Disk(traced.states[0])
    for i, (call, *paths) in enumerate(traced.calls):
        disk.look(traced.states[i])
        yield from ((i, state) for state in disk.failures())
        disk.enter(call, paths)
    disk.look(traced.states[-1])
    yield from ((len(traced.calls), state) for state in disk.failures())


class _Disk:
    """Tracks which bytes and names of a folder's files are on the disk. A file keeps its number when it is renamed."""

    def __init__(self, tree):
        self._numbers, self._contents, self._synced = {}, {}, {}
        self._count, self._renames = 0, []
        self.look(tree)
        self._durable = dict(self._numbers)
        self._synced = dict(self._contents)

    def look(self, tree):
        """Records the current contents of the files."""
        for name in set(self._numbers) - set(tree):
            del self._numbers[name]
        for name, content in tree.items():
            if name not in self._numbers:
                self._count += 1
                self._numbers[name] = self._count
            self._contents[self._numbers[name]] = content

    def enter(self, call, paths):
        """Records the effect of a call that is about to happen."""
        folder = paths[0] if paths[0] != '.' else ''
        if call in ('fsync', 'fdatasync') and (not folder or self._contents[self._numbers[folder]] is None):
            self._durable = {name: number for each in (self._durable, self._numbers) for name, number in each.items()
                             if (os.path.dirname(name) == folder) == (each is self._numbers)}
            self._renames = [each for each in self._renames if os.path.dirname(each[1]) != folder]
        elif call in ('fsync', 'fdatasync'):
            self._synced[self._numbers[paths[0]]] = self._contents[self._numbers[paths[0]]]
        elif call == 'rename':
            old, new = paths
            self._renames.append((old, new, self._numbers[old], self._numbers.get(new)))
            self._numbers[new] = self._numbers.pop(old)

    def failures(self):
        """Yields the possible states of the folder if the power failed now."""
        now, contents = self._numbers, self._contents
        yield self._tree(now, contents)
        yield self._tree(self._durable, contents)
        for old, new, number, before in self._renames:
            undone = {**now, old: number, new: before}
            yield self._tree({name: each for name, each in undone.items() if each is not None}, contents)
        written = [number for number in contents if contents[number] is not None]  # no folder
        uncovered = [number for number in now.values() if number in written and contents[number] != self._synced.get(
            number)]
        for damage in (self._before, self._zeros, self._first_half, self._second_half):
            for number in uncovered:
                yield self._tree(now, {**contents, number: damage(number)})
            everything = {**contents, **{number: damage(number) for number in written}}
            yield self._tree(now, everything)
            yield self._tree(self._durable, everything)

    def _before(self, number):
        return self._synced.get(number, b'')

    def _zeros(self, number):
        before, content = self._before(number), self._contents[number]
        return before + bytes(max(len(content) - len(before), 0))

    def _first_half(self, number):
        return self._contents[number][:self._middle(number)]

    def _second_half(self, number):
        before, middle = self._before(number), self._middle(number)
        return before + bytes(max(middle - len(before), 0)) + self._contents[number][middle:]

    def _middle(self, number):
        """Returns the middle of the bytes that no fsync covers."""
        before, content = self._before(number), self._contents[number]
        return (min(len(before), len(content)) + len(content)) // 2

    @staticmethod
    def _tree(numbers, contents):
        return {name: contents[number] for name, number in numbers.items()
                if os.path.dirname(name) in ('', *numbers)}


def distinct(states):
    """Returns (number, state) pairs without later duplicates, in order."""
    found = {}
    for number, state in states:
        found.setdefault(tuple(sorted(state.items())), (number, state))
    return list(found.values())
