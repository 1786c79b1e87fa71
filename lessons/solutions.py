"""The solutions of the exercises, one function for each lesson. Write your own first.

    python lessons/check.py --solutions
"""
import numpy as np


def mean_of_sparse_gradients(gradients):
    """Lesson 1: all rows of all towers, each divided by the number of towers. Rows that repeat add up."""
    values = np.concatenate([values for values, _ in gradients]) / len(gradients)
    return values, np.concatenate([indices for _, indices in gradients])


def all_gather(num_devices):
    """Lesson 2: each device first sends its own chunk, and then always the one that it has just received."""
    return [[(device + step) % num_devices for device in range(num_devices)] for step in range(num_devices - 1)]


def weighted_mean(gradients, sizes):
    """Lesson 3: each share weighted by its part of the batch; empty shares are left out, because 0 * NaN is NaN."""
    return sum(gradient * (size / sum(sizes)) for gradient, size in zip(gradients, sizes) if size)


def split_points(points, processes):
    """Lesson 4: share p ends where share p + 1 begins, at the whole number below (p + 1) * points / processes."""
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]


def staleness_aware_rate(rate, started, applied):
    """Lesson 5: the rate divided by the staleness, or by 1 if that is 0."""
    return rate / max(1, applied - started)


def order_of_1f1b(part, parts, micro_batches):
    """Lesson 6: some forwards first; then each backward is followed by the next forward while there is one."""
    first = min(parts - part, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order


def clip_mean_gradients(tower_gradients, limit):
    """Lesson 7: the mean over the towers first, then one norm over all variables."""
    means = [np.mean(gradients, 0) for gradients in zip(*tower_gradients)]
    norm = np.sqrt(sum(np.sum(np.square(mean)) for mean in means))
    return [mean * (limit / norm) if norm > limit else mean for mean in means]
