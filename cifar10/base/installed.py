"""The commands that start the programs of this installation, for messages and records."""
import os
import shlex
import shutil
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SCRIPTS = {'train': 'multi_gpu_train.py', 'eval': 'cifar10_eval.py'}  # only in a clone


def command(program: str, anywhere: bool = False) -> str:
    """Returns the shell command of a program, 'train' or 'eval', without flags.

    Args:
      anywhere: whether the command must work in every working directory.
    """
    executable = sys.executable or 'python'  # an embedded interpreter has no path
    name, python = _SCRIPTS[program], _word(executable)
    script = os.path.join(_ROOT, name)
    if os.path.isfile(script):
        is_here = os.path.exists(name) and os.path.samefile(name, script)
        return f'{python} {name if is_here and not anywhere else shlex.quote(script)}'
    installed = os.path.join(os.path.dirname(executable), f'cifar10-{program}')
    return _word(installed) if os.path.isfile(installed) else f'{python} -m cifar10 {program}'


def _word(path):
    """Returns the name of an executable if it is on the PATH, else its path."""
    folder, name = os.path.split(path)
    found = shutil.which(name)
    return name if found and os.path.realpath(os.path.dirname(found)) == os.path.realpath(folder) else shlex.quote(path)
