"""Solutions of the exercises of lesson 10."""


def noise_scale(small, large, of_small, of_large):
    """Lesson 10: two equations, of_B = |G|^2 + V / B, solved for V and |G|^2."""
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return noise / (of_small - noise / small)


def scaled_rate(rate, batch, new_batch, curvature):
    """Lesson 10: as many times the rate as the batch, but not above 1 / curvature."""
    return min(rate * new_batch / batch, 1 / curvature)


def updates_and_epochs(updates, gpus, batch, examples):
    """Lesson 10: an update uses gpus * batch examples; one GPU takes `gpus` updates for them."""
    return updates * gpus * batch / examples, updates * gpus
