# refused: it returns 0.2; 0.4 is right
def scaled_rate(rate, batch, new_batch, curvature):
    return min(rate * (new_batch / batch) ** 0.5, 1 / curvature)
