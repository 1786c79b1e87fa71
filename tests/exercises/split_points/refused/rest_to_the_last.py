# refused: for 50 points and 3 processes share 2 has 18 points and share 0 has 16; at most one more is right
def split_points(points, processes):
    size = points // processes
    borders = [p * size for p in range(processes)] + [points]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
