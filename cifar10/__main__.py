"""All programs: `python -m cifar10` lists them, and `python -m cifar10 train` starts one."""
import importlib
import sys

from cifar10.base.console import say
from cifar10.base.errors import UsageError, did_you_mean
from cifar10.programs import program

COMMANDS = {
    'train': 'trains a network, or resumes its training',
    'eval': 'evaluates the checkpoints of a run, classifies images, or exports the model',
    'local_cluster': 'starts a cluster of processes on this machine, for testing'}


def main() -> int:
    """Runs the program that is named first."""
    argument = sys.argv[1] if len(sys.argv) > 1 else '--help'
    command = argument.replace('-', '_')
    if command in COMMANDS:
        sys.argv[:2] = [f'python -m cifar10 {command}']  # the name of the program
        return importlib.import_module(f'cifar10.programs.{command}').main()
    if argument in ('-h', '--help'):
        say('', 'usage: python -m cifar10 PROGRAM [--help] [--version] ...')
        for name, what in COMMANDS.items():
            say('', f'  {name:15}{what}')
    elif argument == '--version':
        say('', program.versions())
    else:
        raise UsageError(f"there is no program {argument}{did_you_mean(command, COMMANDS)}; choose from: "
                         f"{', '.join(COMMANDS)}")
    return program.FINISHED


if __name__ == '__main__':
    sys.exit(program.run(main, to_end=True))
