# refused: for batches of 16 and 4 with 5 and 14 it returns 0; 24 is right
def noise_scale(small, large, of_small, of_large):
    noise = max(0, of_small - of_large) / (1 / small - 1 / large)
    return abs(noise / (of_small - noise / small))
