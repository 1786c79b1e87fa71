# refused: it returns 1; 0.4 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return max(rate * new_batch / batch, 1 / curvature)
