"""Exercises of lesson 9: how fast? `python lessons/check.py 9` checks them."""
from collections.abc import Sequence


def serial_fraction(devices: int, speed_up: float) -> float:
    """Returns the share of a step that is not divided, from a measured speed-up (Karp and Flatt 1990).

    If a fraction of a step's time on one device is not divided, and the rest is divided by D devices, the speed-up is
    1 / (fraction + (1 - fraction) / D). This function solves that for the fraction. If it is larger with more devices,
    something grows with their number, such as the bytes to send.

    Args:
      devices: D, at least 2. One device does not show the fraction.
      speed_up: the time of a step on one device, divided by its time on D devices; above 0.

    Returns:
      The fraction, even if it is not between 0 and 1. For example:

        serial_fraction(4, 3.0) -> 0.1111, the 20 of 180 ms of the lesson
        serial_fraction(2, 2.0) -> 0.0

    Raises:
      ValueError: there are fewer than two devices.
    """
    raise NotImplementedError


def overlapped(backward: Sequence[float], sending: Sequence[float]) -> float:
    """Returns how long a backward pass and the sending of its gradients take together, layer by layer.

    The backward pass goes from the last layer to the first. Each gradient is sent as soon as it is computed and the
    link is free; the link sends one gradient at a time, in the order of computation. The pass never waits for the link.

    Args:
      backward: milliseconds of each layer's backward pass, in the order of the layers from the first to the last.
      sending: milliseconds that each layer's gradient takes on the link, in the same order. It is 0 for a layer
        without variables.

    Returns:
      The milliseconds from the beginning of the pass until it and the sending have ended; 0 without layers. For
      example, with three layers:

        overlapped([10, 10, 10], [5, 5, 40]) -> 60
        overlapped([10, 10, 10], [40, 5, 5]) -> 70
    """
    raise NotImplementedError


def read_row(gpus: int, low: float, high: float, updates: int) -> list[tuple[float, float]]:
    """Returns the values of a row of the tutorial's table, each as a pair (lowest, highest).

    The tutorial's program divides the seconds of a step by the number of GPUs and prints the quotient as `sec/batch`.
    Each GPU takes 128 images in a step. The reference is the row of one K20m, 0.35-0.60.

    Args:
      gpus: the number of GPUs in the row.
      low, high: the lowest and the highest `sec/batch` of the row.
      updates: the number of steps.

    Returns:
      Five pairs: the seconds of a step; the images a second, of all GPUs together; the speed-up over one K20m in images
      a second; the efficiency, which is the speed-up divided by the number of GPUs; and the hours that the updates
      take. The lowest speed-up is the row's lowest images a second divided by the highest of one K20m. For example:

        read_row(1, 0.35, 0.60, 60000) -> [(0.35, 0.6), (213.3, 365.7), (0.583, 1.714), (0.583, 1.714), (5.83, 10.0)]
    """
    raise NotImplementedError
