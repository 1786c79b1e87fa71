# refused: for the rate 3 at 64, 64 and the curvature 1 it returns 3; 1 is right
def scaled_rate(rate, batch, new_batch, curvature):
    if new_batch <= batch:
        return rate * new_batch / batch
    return min(rate * new_batch / batch, 1 / curvature)
