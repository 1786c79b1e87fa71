"""Answers to read_row."""
from dataclasses import astuple, dataclass

import numpy as np


def accepted_as_described(gpus, low, high, updates):
    step = (low * gpus, high * gpus)
    images = (128 / high, 128 / low)
    up = (images[0] * 0.35 / 128, images[1] * 0.60 / 128)
    return [step, images, up, (up[0] / gpus, up[1] / gpus), (step[0] * updates / 3600, step[1] * updates / 3600)]


@dataclass
class Row:
    step: tuple
    images: tuple
    speed_up: tuple
    efficiency: tuple
    hours: tuple


# The speed-up over one K20m is a quotient of seconds for 128 images, which is what is printed.
def accepted_dataclass(gpus, low, high, updates):
    speed_up = 0.35 / high, 0.60 / low
    return list(astuple(Row((gpus * low, gpus * high), (128 / high, 128 / low), speed_up,
                            tuple(each / gpus for each in speed_up),
                            tuple(gpus * each * updates / 3600 for each in (low, high)))))


class Interval:
    def __init__(self, low, high):
        self.low, self.high = low, high

    def times(self, number):
        return Interval(self.low * number, self.high * number)

    def over(self, other):
        return Interval(self.low / other.high, self.high / other.low)

    def pair(self):
        return self.low, self.high


def accepted_intervals(gpus, low, high, updates):
    step = Interval(low, high).times(gpus)
    images = Interval(128 * gpus, 128 * gpus).over(step)
    up = images.over(Interval(128, 128).over(Interval(0.35, 0.60)))
    return [each.pair() for each in (step, images, up, up.times(1 / gpus), step.times(updates / 3600))]


def accepted_numpy(gpus, low, high, updates):
    step = gpus * np.array([low, high])
    images = 128 * gpus / step[::-1]
    up = images / (128 / np.array([0.35, 0.60]))
    return np.array([step, images, up, up / gpus, updates * step / 3600])


K20M = (0.35, 0.60)


def accepted_tuple_of_tuples(gpus, low, high, updates):
    rows = []
    rows.append((gpus * low, gpus * high))
    rows.append(tuple(sorted(gpus * 128 / seconds for seconds in rows[0])))
    rows.append((rows[1][0] / (128 / K20M[0]), rows[1][1] / (128 / K20M[1])))
    rows.append(tuple(up / gpus for up in rows[2]))
    rows.append(tuple(updates * seconds / 60 / 60 for seconds in rows[0]))
    return tuple(rows)


def accepted_line_by_line(gpus, low, high, updates):
    step = gpus * low, gpus * high
    images = 128 * gpus / step[1], 128 * gpus / step[0]
    up = images[0] * 0.35 / 128, images[1] * 0.60 / 128
    efficiency = up[0] / gpus, up[1] / gpus
    hours = updates * step[0] / 3600, updates * step[1] / 3600
    return [step, images, up, efficiency, hours]


mistakes_in_line_by_line = {
    'batch_is_not_for_each_gpu': (
        'the images a second are 320 to 320; 1280 to 1280 is right',
        '128 * gpus / step[1], 128 * gpus', '128 / step[1], 128'),
    'efficiency_at_most_1': (
        'the efficiency is 0.875 to 1; 0.875 to 1.5 is right',
        'up[0] / gpus, up[1] / gpus', 'min(1, up[0] / gpus), min(1, up[1] / gpus)'),
    'efficiency_is_the_speed_up': (
        'the efficiency is 3.5 to 6; 0.875 to 1.5 is right',
        'up[0] / gpus, up[1] / gpus', 'up'),
    'hours_are_minutes': (
        'the hours are 200 to 200; 3.333 to 3.333 is right',
        '3600, updates * step[1] / 3600', '60, updates * step[1] / 60'),
    'hours_of_one_gpu_for_all': (
        'is right',
        '3600, updates * step[1] / 3600', '3600 / gpus, updates * step[1] / 3600 / gpus'),
    'hours_of_the_printed_seconds': (
        'the hours are 0.8333 to 0.8333; 3.333 to 3.333 is right',
        'step[0] / 3600, updates * step[1]', 'low / 3600, updates * high'),
    'low_over_low': (
        'the speed-up is 6 to 3.5; 3.5 to 6 is right',
        '0.35 / 128, images[1] * 0.60', '0.60 / 128, images[1] * 0.35'),
    'lowest_of_lowest': (
        'the images a second are 365.7 to 213.3; 213.3 to 365.7 is right',
        'step[1], 128 * gpus / step[0]', 'step[0], 128 * gpus / step[1]'),
    'over_the_mean_of_one': ('the speed-up is', '0.35 / 128, images[1] * 0.60', '0.475 / 128, images[1] * 0.475'),
    'printed_seconds_as_the_step': (
        'the seconds of a step are 0.1 to 0.1; 0.4 to 0.4 is right',
        'gpus * low, gpus * high', 'low, high'),
    'seconds_divided_again': (
        'the seconds of a step are 0.025 to 0.025; 0.4 to 0.4 is right',
        'gpus * low, gpus * high', 'low / gpus, high / gpus'),
    'speed_up_of_a_step': (
        'the speed-up is 0.875 to 1.5; 3.5 to 6 is right',
        'images[0] * 0.35 / 128, images[1] * 0.60 / 128', '0.35 / step[1], 0.60 / step[0]'),
}


# Right for the tutorial's rows: no other has more GPUs than four.
def refused_rows_of_the_table(gpus, low, high, updates):
    """is right"""
    gpus = min(gpus, 4)
    step = (low * gpus, high * gpus)
    up = (0.35 / high, 0.60 / low)
    return [step, (128 / high, 128 / low), up, (up[0] / gpus, up[1] / gpus),
            (step[0] * updates / 3600, step[1] * updates / 3600)]


def refused_single_numbers(gpus, low, high, updates):
    """it does not return five pairs of numbers"""
    mean = (low + high) / 2 * gpus
    return [mean, 128 * gpus / mean, 0.475 * gpus / mean, 0.475 / mean, updates * mean / 3600]
