"""docs/clusters.md: its files for other programs are well formed, and its flags and statuses are this program's."""
import re
import shlex
import subprocess

import pytest

from cifar10.base.errors import TemporaryError
from cifar10.programs import flags, program
from cifar10.settings.training import GROUPS, train_settings
from tests.helpers import ROOT, patient

PAGE = (ROOT / 'docs' / 'clusters.md').read_text()
SECTIONS = dict(re.findall(r'^## (.*)\n((?:(?!## ).*\n)*)', PAGE, re.M))


def blocks(section):
    """Returns the texts of the code blocks of a section."""
    return re.findall(r'^```\w*\n(.*?)^```$', SECTIONS[section], re.M | re.S)


def test_the_flags_of_all_commands_are_accepted(tmp_path):
    text = '\n'.join(block for section in SECTIONS for block in blocks(section))
    text = re.sub(r'\\\n +', '', text)
    commands = re.findall(r'multi_gpu_train\.py,? (--[^\]\n]*)', text)
    assert len(commands) == 4
    for command in commands:
        train_settings(**flags.parse(GROUPS, '.', shlex.split(command.replace(', ', ' '))))


@pytest.mark.parametrize('status, earlier, requeued', [
    (0, None, False), (program.STOPPED, None, False),
    (TemporaryError.status, None, True), (TemporaryError.status, 2, True), (TemporaryError.status, 3, False)])
def test_the_slurm_script_requeues_after_75_and_keeps_the_status(tmp_path, status, earlier, requeued):
    script, = blocks('Kubernetes and Slurm')
    for name, text in (('srun', f'exit {status}'), ('scontrol', f'echo "$@" > {tmp_path}/requeued')):
        (tmp_path / name).write_text(f'#!/bin/bash\n{text}\n')
        (tmp_path / name).chmod(0o755)
    environment = dict(PATH=f'{tmp_path}:/usr/bin:/bin', HOME=str(tmp_path), SLURM_JOB_ID='41')
    if earlier is not None:
        environment['SLURM_RESTART_COUNT'] = str(earlier)
    result = subprocess.run(['bash'], input=script, env=environment, capture_output=True, text=True,
                            timeout=patient(5))
    assert (result.returncode, result.stderr) == (status, '')
    assert (tmp_path / 'requeued').exists() == requeued
    assert not requeued or (tmp_path / 'requeued').read_text() == 'requeue 41\n'
