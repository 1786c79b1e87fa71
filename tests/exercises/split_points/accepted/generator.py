def split_points(points, processes):
    for p in range(processes):
        first, end = p * points // processes, (p + 1) * points // processes
        yield first, end, (end - first) / points
