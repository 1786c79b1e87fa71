"""Runs every test that this machine can run, kind by kind, and prints a summary.

    python -m tests

For each kind, the summary has the number of tests that ran and the time; then it lists the tests that did not run, and
why. Arguments go to pytest, for example `-k cluster`.
"""
import collections
import os
import subprocess
import sys
import tempfile
import time
from xml.etree import ElementTree

_KINDS = {'default': [], 'lessons': ['-m', 'lessons'], 'stress': ['-m', 'stress'],
          'timing': ['-m', 'timing', '-n', '0'], 'gpu': ['-m', 'gpu', '-n', '0', '-s']}
_NO_TESTS = 5  # pytest's exit status if no test is selected


def results(report):
    """Returns (names of tests that ran, names of failed tests, {reason: names of tests that did not run}).

    Args:
      report: the path of pytest's report, an XML file.
    """
    ran, failed, skipped = [], [], collections.defaultdict(list)
    for test in ElementTree.parse(report).iter('testcase'):
        name = f"{test.get('classname')}.{test.get('name')}".lstrip('.')
        reasons = [skip.get('message') for skip in test.iter('skipped')]
        for reason in reasons:
            skipped[reason].append(name)
        if not reasons:
            ran.append(name)
        if test.find('failure') is not None or test.find('error') is not None:
            failed.append(name)
    return ran, failed, skipped


def main():
    """Runs pytest for each kind of tests; returns the exit status."""
    lines, left_out, statuses = [], collections.defaultdict(list), []
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, 'report.xml')
        for kind, arguments in _KINDS.items():
            start = time.monotonic()
            command = [sys.executable, '-m', 'pytest', *arguments, *sys.argv[1:], '--junitxml=' + report]
            statuses.append(subprocess.run(command).returncode)
            if statuses[-1] not in (0, 1, _NO_TESTS):
                return statuses[-1]  # interrupted, or it could not run
            ran, failed, skipped = results(report)
            for reason, tests in skipped.items():
                left_out[reason] += tests
            lines.append(f'{kind:8} {len(ran):5} ran, {len(failed):3} failed, {sum(map(len, skipped.values())):4} did '
                         f'not run, {time.monotonic() - start:6.0f} s')
    print('', *lines, sep='\n')
    for reason, tests in sorted(left_out.items()):
        print(f'not run, {reason}: {len(tests)}: {", ".join(sorted({test.split("[")[0] for test in tests}))}')
    return int(1 in statuses)


if __name__ == '__main__':
    sys.exit(main())
