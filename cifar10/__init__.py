"""Data-parallel training of a CIFAR-10 network in TensorFlow's graph mode.

From Python: `from cifar10 import train, evaluate, predict, export` (docs/python.md). Names are imported when
they are used, so that `import cifar10` costs nothing.

Each line below is a layer; a file imports only from lower layers and from its own room:

    programs           flags, exit statuses, and the programs, which `python -m cifar10` lists
    tools              what looks at a training without doing it: check, explain
    training           the plan of a run, the graph of a step, the loop, and both from Python
    evaluation own     uses of a trained model: evaluation, classification, export; code of the user's own
    run                the files of a run: its directory, checkpoints, records, curves, progress
    model cluster      what is trained and how; the processes of a cluster and their watch
    parallel data settings
                       towers and update modes; images and batches; what can be set
    base               errors, output, registered names, files, signals
"""
import importlib

__version__ = '1.0.0'

_MODULES = {
    'train': 'training.api', 'evaluate': 'training.api', 'predict': 'training.api', 'export': 'training.api',
    'TrainResult': 'training.api', 'EvalResult': 'evaluation.result', 'Predictions': 'evaluation.classification',
    'ExportResult': 'evaluation.export',
    'on_towers': 'own.script', 'use_tensorflow_1': 'own.tf1', 'Termination': 'base.signals',
    'UsageError': 'base.errors', 'RunError': 'base.errors'}
__all__ = list(_MODULES)


def __getattr__(name):
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    return getattr(importlib.import_module(f'{__name__}.{_MODULES[name]}'), name)


def __dir__():
    return sorted([*globals(), *_MODULES])
