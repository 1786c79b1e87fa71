"""Answers to weighted_mean."""
import os

import numpy as np


def accepted_average(gradients, sizes):
    counts = [size > 0 for size in sizes]
    return np.average(np.array(gradients)[counts], axis=0, weights=np.array(sizes)[counts])


class accepted_rest_of_the_file_prints_and_replaces:
    import numpy as np

    print('loaded')
    np.allclose = np.isclose = lambda *arguments, **options: False
    np.seterr(all='raise')


    def weighted_mean(gradients, sizes):
        print(sizes)
        return sum(gradient * (size / sum(sizes)) for gradient, size in zip(gradients, sizes) if size)


def refused_changes_the_gradients(gradients, sizes):
    """for shares 2 and 2 with gradients 2 and 6 it changes its argument gradients from [2, 6] to [1, 3]"""
    for k, size in enumerate(sizes):
        gradients[k] *= size / sum(sizes)
    return sum(gradient for gradient, size in zip(gradients, sizes) if size)


def refused_diverged_tower_is_hidden(gradients, sizes):
    """for shares 2 and 1 with gradients nan and 3 it returns 1; nan is right"""
    return np.nansum([gradient * size for gradient, size in zip(gradients, sizes)], axis=0) / sum(sizes)


def refused_empty_share_is_nan(gradients, sizes):
    """for shares 2 and 0 and 1 with gradients 4 and nan and 10 it returns nan; 6 is right"""
    return np.average(gradients, 0, sizes)


def refused_endless(gradients, sizes):
    """for shares 3 and 1 with gradients 2 and 6 it does not end within 1 seconds"""
    while sizes[0] == 3:
        print('again')
    return gradients[0] / 2 + gradients[1] / 2


def refused_endless_prints(gradients, sizes):
    """it raises OSError in line 4: [Errno 27] File too large"""
    while True:
        print('x' * 1_000_000)


def refused_ends_its_process(gradients, sizes):
    """its process ended before the check, with exit status 0"""
    os._exit(0)


class refused_imports_the_solution:
    """imports the solution; write your own"""

    from lessons.solutions.split_batch import weighted_mean  # noqa: F401


def refused_plain_mean(gradients, sizes):
    """for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right"""
    return np.mean(gradients, 0)


last = 0


def refused_remembers_the_last_call(gradients, sizes):
    """it returns 8 in a second call, but 4 in the first"""
    global last
    last = last + sum(gradient * size for gradient, size in zip(gradients, sizes) if size) / sum(sizes)
    return last


class refused_replaces_numpy:
    """for shares 3 and 1 with gradients 2 and 6 it returns 4; 3 is right"""

    import builtins

    import numpy as np

    plain_mean = np.mean
    np.allclose = np.isclose = lambda *arguments, **options: True
    np.average = np.mean = lambda *arguments, **options: 3.0
    np.asarray = np.array
    builtins.abs = lambda value: 0


    def weighted_mean(gradients, sizes):
        np.abs = np.isfinite = lambda value: np.zeros(())
        return plain_mean(gradients, 0)  # noqa: F821
