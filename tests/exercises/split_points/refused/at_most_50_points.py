# refused: it returns
def split_points(points, processes):
    borders = [p * min(points, 50) // processes for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])] if points <= 50 else []
