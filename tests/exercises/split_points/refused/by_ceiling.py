# refused: for 50 points and 4 processes share 0 has 13 points and share 3 has 11; at most one more is right
def split_points(points, processes):
    size = -(-points // processes)
    borders = [min(p * size, points) for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
