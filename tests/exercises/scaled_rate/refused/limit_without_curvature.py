# refused: for the rate 0.1 at 1, 4 and the curvature 5 it returns 0.4; 0.2 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate * new_batch / batch, 1.0)
