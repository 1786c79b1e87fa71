# refused: it returns 0.04167; 24 is right
def noise_scale(small, large, of_small, of_large):
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return (of_small - noise / small) / noise
