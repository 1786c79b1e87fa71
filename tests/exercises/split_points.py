"""Answers to split_points."""
from fractions import Fraction


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
    'last_included': ('for 50 points and 5 processes point 9 is in no share', 'end,', 'end - 1,'),
}


def accepted_fractions(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, Fraction(end - first, points)) for first, end in zip(borders, borders[1:])]


def refused_overlap(points, processes):
    """for 50 points and 5 processes share 4 is from 40 to 51; 0 <= first <= end <= 50 is right"""
    return [(p * points // processes, (p + 1) * points // processes + 1, 1 / processes) for p in range(processes)]
