"""Solutions of the exercises of lesson 12."""
import numpy as np

FRAMEWORKS = ('graph towers', 'tf.distribute', 'Keras', 'PyTorch', 'JAX', 'Horovod', 'MXNet')


def divide(framework, loss_sum, local, world):
    """MXNet divides by all examples, and where gradients are added, the loss is; the others divide by the devices."""
    if framework not in FRAMEWORKS:
        raise ValueError(f'{framework!r} is none of {FRAMEWORKS}')
    if framework == 'MXNet':
        return loss_sum
    return loss_sum / (local * world if framework in ('tf.distribute', 'JAX') else local)


def after_update(faults, w, x, replicas, rate):
    """First who computes what, then each replica's own division, then the sum over the replicas."""
    shares = _shares(faults, x, replicas)
    divisors = [len(share) if 'means added' in faults else len(x) for share in shares]
    return w - rate * sum(np.sum(2 * (w - share)) / divisor for share, divisor in zip(shares, divisors))


def examples_computed(faults, examples, replicas):
    """One replica leaves the other devices without work; without a division each replica has the whole batch."""
    sizes = [len(share) for share in _shares(faults, range(examples), replicas)]
    return sizes + [0] * (replicas - len(sizes))


def _shares(faults, x, replicas):
    """Returns the examples that each replica computes."""
    count = 1 if 'one device' in faults else replicas
    return [x] * count if 'same batch' in faults else np.array_split(x, count)
