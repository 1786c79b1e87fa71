"""The commands that start the programs of this installation, for messages and records."""
import os
import shlex
import shutil
import sys

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_SCRIPTS = {'train': 'multi_gpu_train.py', 'eval': 'cifar10_eval.py'}  # which a clone has beside the package


def command(program: str, anywhere: bool = False) -> str:
    """Returns the shell command of a program, 'train' or 'eval', to which flags can be added.

    Args:
      anywhere: whether it must work in any working directory, and not only in the present one.
    """
    executable = sys.executable or 'python'  # an embedded interpreter does not know its own
    name, python = _SCRIPTS[program], _word(executable)
    script = os.path.join(_ROOT, name)
    if os.path.isfile(script):
        is_here = os.path.exists(name) and os.path.samefile(name, script)
        return f'{python} {name if is_here and not anywhere else shlex.quote(script)}'
    installed = os.path.join(os.path.dirname(executable), f'cifar10-{program}')
    return _word(installed) if os.path.isfile(installed) else f'{python} -m cifar10 {program}'


def _word(path):
    """Returns the name of an executable if a shell finds this one by it, else its path."""
    folder, name = os.path.split(path)
    found = shutil.which(name)
    return name if found and os.path.realpath(os.path.dirname(found)) == os.path.realpath(folder) else shlex.quote(path)
