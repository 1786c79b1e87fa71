"""Data-parallel training of a CIFAR-10 network in TensorFlow's graph mode.

From Python: `from cifar10 import train, evaluate` (docs/python.md). They are imported when they are used, so that
`import cifar10` costs nothing.

Each line below is a layer; a file imports only from lower layers and from its own package:

    local_cluster show_inputs replay  programs: a cluster on this machine, a picture of what is fed, a step taken again
    cli                               the command line: flags, --check, exit statuses
    explain                           where the time of a step goes
    api                               train and evaluate, as the scripts and other Python code call them
    training                          the graph of a step, and the loop
    plan trained                      all that is decided before a graph is built; what is done with a trained model
    recipe run cluster                what is trained and how; what a run writes; the processes of a cluster
    settings data parallel networks   what can be set; images; towers and update modes; networks
    optim own registry directories files signals console timeline errors
                                      the ground, each of which may import those to its right
"""
import importlib

_MODULES = {'train': 'api', 'evaluate': 'api', 'TrainResult': 'api', 'EvalResult': 'api', 'Termination': 'signals',
            'UsageError': 'errors', 'RunError': 'errors'}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__():
    return sorted([*globals(), *_MODULES])
