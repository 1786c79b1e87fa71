def noise_scale(small, large, of_small, of_large):
    noise = (of_small - of_large) / (1 / small - 1 / large)
    norm = of_small - noise / small
    return noise / norm
