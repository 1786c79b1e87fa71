# refused: it returns 6; 24 is right
def noise_scale(small, large, of_small, of_large):
    """tr(S) / small in place of tr(S)."""
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return noise / small / (of_small - noise / small)
