"""What a step would take with more devices, and on two machines, from measured parts of a step.

The formulas are those of docs/scaling.md. This file computes; it measures nothing and knows no TensorFlow.
"""
from collections.abc import Mapping
from typing import NamedTuple

from cifar10.tools.explain.parts import ALL_REDUCE, AVERAGING, BETWEEN, INPUT, TOWERS, TRANSFERS, UPDATE


class Measured(NamedTuple):
    """A step as it was measured.

    Attributes:
      devices: how many devices take part; each has as many towers as the others.
      seconds: of the step.
      parts: the seconds of each part, by its name.
      cpu: for how many seconds the cores of this machine compute, all together.
    """
    devices: int
    seconds: float
    parts: Mapping[str, float]
    cpu: float


def forecast(one: Measured, several: Measured, devices: int, cores: float, in_turns: bool = False,
             machines: int = 1, input_seconds: float = 0.0) -> float:
    """Returns the seconds of a step with more devices, each with the towers of one device now.

    The devices compute at the same time. What grows with their number is taken from the two steps that were measured.
    No step is shorter than the time that the cores of the host need for their share of it.

    Args:
      one: a step of one device.
      several: a step of several devices.
      devices: the number of devices to forecast.
      cores: of a host; infinite where that does not matter.
      in_turns: whether the run has one device only, and `several` is a step of that device with the towers of several.
      machines: on how many hosts the devices are; what travels between them is not included.
      input_seconds: the time in which a host makes the batches of a device, where the towers wait for them; else 0.
    """
    def share(n):  # of its gradients that a device sends in each half of an all-reduce of n
        return (n - 1) / n

    def modelled(n, cores):
        more = (n - 1) / (several.devices - 1)  # as many times the step from one tower to several
        cpu = one.cpu + more * (several.cpu - one.cpu)
        between = one.parts[BETWEEN] + more * max(several.parts[BETWEEN] - one.parts[BETWEEN], 0)
        parts = [one.parts[INPUT], one.parts[TOWERS], between, several.parts[UPDATE]]
        # The mean of twice as many gradients reads twice as many.
        parts.append(several.parts.get(AVERAGING, 0) * n / several.devices if n > 1 else 0)
        parts.append(several.parts.get(TRANSFERS, 0) * n / several.devices)
        parts.append(several.parts.get(ALL_REDUCE, 0) * share(n) / share(several.devices))
        return max(sum(parts), cpu / cores)
    # What the model does not know, such as caches, is taken to stay as it is.
    known = one if in_turns else several
    seconds = modelled(devices, machines * cores) * known.seconds / modelled(known.devices, cores)
    return max(seconds, input_seconds * devices / machines)


def over_a_link(seconds: float, towers: int, devices: int, megabytes: float, megabytes_per_second: float,
                all_reduces: bool) -> float:
    """Returns the seconds of a step on two machines.

    Args:
      seconds: of the step if nothing had to travel between the machines.
      towers, devices: of each machine.
      megabytes: the size of the variables.
      megabytes_per_second: of the link.
      all_reduces: whether gradients are all-reduced; otherwise variables travel out and gradients back.
    """
    if all_reduces:
        # More than two towers agree on exponents, half as long, before they add integers.
        remote = (1.5 if towers > 1 else 1) * (2 * devices - 1) / (2 * devices)
    else:
        remote = towers
    return seconds + 2 * megabytes * remote / megabytes_per_second
