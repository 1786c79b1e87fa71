# refused: for the rate 0.4 at 512, 128 and the curvature 1 it returns 0.4; 0.1 is right
def scaled_rate(rate, batch, new_batch, curvature):
    """Only grows with the batch."""
    return min(max(rate, rate * new_batch / batch), 1 / curvature)
