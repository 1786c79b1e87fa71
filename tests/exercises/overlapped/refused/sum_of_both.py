# refused: for backward [10, 10, 10] and sending [5, 5, 40] it returns 80; 60 is right
def overlapped(backward, sending):
    return sum(backward) + sum(sending)
