# refused: it returns 9.6; 24 is right
def noise_scale(small, large, of_small, of_large):
    """|mean|^2 still has a part of the noise."""
    return (of_small - of_large) / (1 / small - 1 / large) / of_large
