# refused: it returns 0.1; 0.4 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate, 1 / curvature)
