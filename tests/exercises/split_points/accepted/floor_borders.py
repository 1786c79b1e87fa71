def split_points(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
