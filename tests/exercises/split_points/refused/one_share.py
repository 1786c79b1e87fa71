# refused: for 50 points and 5 processes it returns 1 share instead of 5
def split_points(points, processes):
    return [(0, points, 1)]
