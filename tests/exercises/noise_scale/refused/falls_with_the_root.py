# refused: is right
def noise_scale(small, large, of_small, of_large):
    """As if the squared norm of the noise fell with the square root of the batch."""
    noise = (of_small - of_large) / (small ** -0.5 - large ** -0.5)
    return noise / (of_small - noise / small ** 0.5)
