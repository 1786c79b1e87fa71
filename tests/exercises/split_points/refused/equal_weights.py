# refused: for 5 points and 2 processes share 0, of 2 points, has the weight 0.5; 2/5 = 0.4 is right
def split_points(points, processes):
    borders = [p * points // processes for p in range(processes + 1)]
    return [(first, end, 1 / processes) for first, end in zip(borders, borders[1:])]
