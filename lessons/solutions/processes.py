"""Solution of the exercise of lesson 5."""


def split_points(points, processes):
    """Share p ends where share p + 1 begins, at the whole number below (p + 1) * points / processes."""
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
