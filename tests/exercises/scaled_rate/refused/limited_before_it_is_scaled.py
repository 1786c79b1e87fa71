# refused: it returns 3.2; 1 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate, 1 / curvature) * new_batch / batch
