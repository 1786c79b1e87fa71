from functools import partial


def _scaled(rate, batch, new_batch, curvature, fraction):
    return sorted([rate * new_batch / batch, fraction * 2 / curvature])[0]


scaled_rate = partial(_scaled, fraction=0.5)
