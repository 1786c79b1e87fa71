# refused: for 15 points and 11 processes point 14 is in no share
def split_points(points, processes):
    borders = [int(p * (points / processes)) for p in range(processes + 1)]
    return [(first, end, (end - first) / points) for first, end in zip(borders, borders[1:])]
