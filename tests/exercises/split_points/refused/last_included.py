# refused: for 50 points and 5 processes point 9 is in no share
def split_points(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end - 1, (end - first) / points) for first, end in zip(borders, borders[1:])]
