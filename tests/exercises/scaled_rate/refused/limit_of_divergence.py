# refused: it returns 2; 1 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate * new_batch / batch, 2 / curvature)
