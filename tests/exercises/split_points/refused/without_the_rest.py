# refused: for 5 points and 2 processes point 4 is in no share
def split_points(points, processes):
    size = points // processes
    return [(p * size, (p + 1) * size, 1 / processes) for p in range(processes)]
