# refused: is right
def noise_scale(small, large, of_small, of_large):
    """The norms in place of their squares."""
    of_small, of_large = of_small ** 0.5, of_large ** 0.5
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return noise / (of_small - noise / small)
