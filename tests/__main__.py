"""Runs every test that this machine can run, and lists at the end what was not run, and why.

    python -m tests

The tests that measure time run one at a time after all others. Arguments go to pytest, for example `-k cluster`.
"""
import collections
import os
import subprocess
import sys
import tempfile
from xml.etree import ElementTree

_RUNS = (['-m', 'not timing and not gpu'], ['-m', 'timing or gpu', '-n', '0'])
_NO_TESTS = 5  # pytest's exit status if it has selected none


def skipped(report):
    """Returns {reason: names of the tests} of pytest's report, the path of an XML file."""
    found = collections.defaultdict(list)
    for test in ElementTree.parse(report).iter('testcase'):
        for skip in test.iter('skipped'):
            found[skip.get('message')].append(f"{test.get('classname')}.{test.get('name')}".lstrip('.'))
    return found


def main():
    """Runs pytest for all tests but those that measure, and for these; returns the exit status."""
    left_out, statuses = collections.defaultdict(list), []
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report.xml')
        for arguments in _RUNS:
            command = [sys.executable, '-m', 'pytest', *arguments, *sys.argv[1:], '--junitxml=' + report]
            statuses.append(subprocess.run(command).returncode)
            if statuses[-1] not in (0, 1, _NO_TESTS):
                return statuses[-1]  # interrupted, or it could not run
            for reason, tests in skipped(report).items():
                left_out[reason] += tests
    print(f'\nnot run: {sum(map(len, left_out.values()))} tests')
    for reason, tests in sorted(left_out.items()):
        print(f'{len(tests):4}  {reason}: {", ".join(sorted({test.split("[")[0] for test in tests}))}')
    return int(1 in statuses)


if __name__ == '__main__':
    sys.exit(main())
