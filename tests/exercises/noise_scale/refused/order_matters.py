# refused: for batches of 16 and 4 with 5 and 14
def noise_scale(small, large, of_small, of_large):
    if small > large:
        raise ValueError('the small batch comes first')
    noise = (of_small - of_large) / (1 / small - 1 / large)
    return noise / (of_small - noise / small)
