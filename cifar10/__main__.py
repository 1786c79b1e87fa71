"""The programs beside the two scripts: `python -m cifar10 replay`, `show_inputs` and `local_cluster`."""
import importlib
import sys

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.programs import program

COMMANDS = {
    'replay': 'takes a step of a run again and shows what happened in it, or where two runs part',
    'show_inputs': 'plots the images that a run feeds its network',
    'local_cluster': 'starts a cluster of processes on this machine, for testing'}


def main() -> None:
    """Runs the command that is named first."""
    command = sys.argv[1] if len(sys.argv) > 1 else None
    if command in (None, '-h', '--help'):
        say('usage: python -m cifar10 COMMAND [--help] ...')
        for name, what in COMMANDS.items():
            say(f'  {name:15}{what}')
    elif command in COMMANDS:
        del sys.argv[:1]  # the command is the name of the program
        importlib.import_module(f'cifar10.programs.{command}').main()
    else:
        raise UsageError(f"there is no command {command}; give one of {', '.join(COMMANDS)}")


if __name__ == '__main__':
    sys.exit(program.run(main))
