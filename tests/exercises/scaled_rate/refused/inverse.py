# refused: it returns 0.025; 0.4 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate * batch / new_batch, 1 / curvature)
