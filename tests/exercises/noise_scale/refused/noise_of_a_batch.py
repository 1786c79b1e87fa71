# refused: it returns 6; 24 is right
def noise_scale(small, large, of_small, of_large):
    """V / small in place of V."""
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return noise / small / (of_small - noise / small)
