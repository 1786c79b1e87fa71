# refused: for backward [10, 10, 10] and sending [5, 5, 40] it returns 50; 60 is right
def overlapped(backward, sending):
    return max(sum(backward), sum(sending))
