# refused: for 50 points and 5 processes it returns None; a list of shares is right
def split_points(points, processes):
    print(points / processes)
