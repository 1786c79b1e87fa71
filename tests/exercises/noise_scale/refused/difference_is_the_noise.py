# refused: it returns 7.2; 24 is right
def noise_scale(small, large, of_small, of_large):
    """As if the large batch had no noise."""
    return small * (of_small - of_large) / of_large
