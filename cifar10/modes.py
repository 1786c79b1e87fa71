"""The table of update modes, by the names that `--variable_update` takes."""
from cifar10.asynchronous import Asynchronous
from cifar10.mirrored import Mirrored
from cifar10.replicated import Replicated
from cifar10.updates import ParameterServer

MODES = {'parameter_server': ParameterServer, 'replicated': Replicated, 'async': Asynchronous, 'mirrored': Mirrored}
