def noise_scale(small, large, of_small, of_large):
    return small * large * (of_small - of_large) / (large * of_large - small * of_small)
