# refused: is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate * new_batch / batch, curvature)
