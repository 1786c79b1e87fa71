# refused: share 0 is [0, 10]; a tuple (first, end, weight) is right
def split_points(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return list(zip(borders, borders[1:]))
