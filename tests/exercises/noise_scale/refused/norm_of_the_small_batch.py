# refused: it returns 3.429; 24 is right
def noise_scale(small, large, of_small, of_large):
    return (of_small - of_large) / (1 / small - 1 / large) / of_small
