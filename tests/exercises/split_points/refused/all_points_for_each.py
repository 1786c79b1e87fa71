# refused: for 50 points and 5 processes point 0 is in the shares 0 and 1
def split_points(points, processes):
    return [(0, points, 1 / processes)] * processes
