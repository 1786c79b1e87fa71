# refused: for 50 points and 5 processes share 4 is from 40 to 51; 0 <= first <= end <= 50 is right
def split_points(points, processes):
    return [(p * points // processes, (p + 1) * points // processes + 1, 1 / processes) for p in range(processes)]
