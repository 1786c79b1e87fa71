# refused: it does not end within 1 seconds
def weighted_mean(gradients, sizes):
    while True:
        try:
            gradients[0] += 1
        except:  # noqa: E722
            pass
