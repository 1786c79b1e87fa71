# refused: for 2 points and 3 processes it returns 2 shares instead of 3
def split_points(points, processes):
    used = min(points, processes)
    borders = [p * points // used for p in range(used + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
