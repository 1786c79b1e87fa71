def noise_scale(small, large, of_small, of_large):
    """McCandlish et al. 2018, appendix A.1."""
    norm = (large * of_large - small * of_small) / (large - small)
    return (of_small - of_large) / (1 / small - 1 / large) / norm
