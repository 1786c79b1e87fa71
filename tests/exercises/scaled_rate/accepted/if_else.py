def scaled_rate(rate, batch, new_batch, curvature):
    scaled = rate * (new_batch / batch)
    if scaled * curvature > 1:
        return 1 / curvature
    return scaled
