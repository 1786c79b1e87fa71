"""Answers to split_points."""
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass
class Share:
    first: 'int'
    end: 'int'
    weight: 'float'


def accepted_dataclasses(points: 'int', processes: 'int') -> 'list[Share]':
    borders = [p * points // processes for p in range(processes + 1)]
    return [Share(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]


def accepted_floor_borders(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]


mistakes_in_floor_borders = {
    'by_ceiling': (
        'for 50 points and 4 processes share 0 has 13 points and share 3 has 11; at most one more is right',
        'borders = [p * points // processes for p in range(processes + 1)]',
        'size = -(-points // processes)\n'
        'borders = [min(p * size, points) for p in range(processes + 1)]'),
    'equal_weights': (
        'for 5 points and 2 processes share 0, of 2 points, has the weight 0.5; 2/5 = 0.4 is right',
        'end, (end - first) / points', 'end, 1 / processes'),
    'fewer_shares_than_processes': (
        'for 2 points and 3 processes it returns 2 shares instead of 3',
        'borders = [p * points // processes for p in range(processes + 1)]',
        'used = min(points, processes)\n'
        'borders = [p * points // used for p in range(used + 1)]'),
    'last_included': ('for 50 points and 5 processes point 9 is in no share', 'end,', 'end - 1,'),
    'rest_to_the_last': (
        'for 50 points and 3 processes share 2 has 18 points and share 0 has 16; at most one more is right',
        'borders = [p * points // processes for p in range(processes + 1)]',
        'size = points // processes\n'
        'borders = [p * size for p in range(processes)] + [points]'),
    'rounded_quotient': (
        'for 15 points and 11 processes point 14 is in no share',
        'p * points // processes', 'int(p * (points / processes))'),
}


def accepted_fractions(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, Fraction(end - first, points)) for first, end in zip(borders, borders[1:])]


def accepted_generator(points, processes):
    for p in range(processes):
        first, end = p * points // processes, (p + 1) * points // processes
        yield first, end, (end - first) / points


def accepted_numpy(points, processes):
    shares = np.array_split(np.arange(points), processes)
    ends = np.cumsum([len(share) for share in shares])
    return [(end - len(share), end, len(share) / points) for end, share in zip(ends, shares)]


def accepted_remainder_first(points, processes):
    size, more = divmod(points, processes)
    shares, first = [], 0
    for p in range(processes):
        end = first + size + (p < more)
        shares.append((first, end, (end - first) / points))
        first = end
    return shares


def refused_all_points_for_each(points, processes):
    """for 50 points and 5 processes point 0 is in the shares 0 and 1"""
    return [(0, points, 1 / processes)] * processes


def refused_at_most_50_points(points, processes):
    """it returns"""
    borders = [p * min(points, 50) // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])] if points <= 50 else []


def refused_float_borders(points, processes):
    """share 0 is from 0.0 to 10.0; whole numbers, which can slice an array, are right"""
    borders = np.linspace(0, points, processes + 1).round()
    return [(float(first), float(end), (end - first) / points) for first, end in zip(borders, borders[1:])]


def refused_none(points, processes):
    """for 50 points and 5 processes it returns None; a list of shares is right"""
    print(points / processes)


def refused_one_share(points, processes):
    """for 50 points and 5 processes it returns 1 share instead of 5"""
    return [(0, points, 1)]


def refused_overlap(points, processes):
    """for 50 points and 5 processes share 4 is from 40 to 51; 0 <= first <= end <= 50 is right"""
    return [(p * points // processes, (p + 1) * points // processes + 1, 1 / processes) for p in range(processes)]


def refused_pairs(points, processes):
    """share 0 is [0, 10]; a tuple (first, end, weight) is right"""
    borders = [p * points // processes for p in range(processes + 1)]
    return list(zip(borders, borders[1:]))


def refused_without_the_rest(points, processes):
    """for 5 points and 2 processes point 4 is in no share"""
    size = points // processes
    return [(p * size, (p + 1) * size, 1 / processes) for p in range(processes)]
