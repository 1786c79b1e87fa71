# refused: it does not return five pairs of numbers
def read_row(gpus, low, high, updates):
    mean = (low + high) / 2 * gpus
    return [mean, 128 * gpus / mean, 0.475 * gpus / mean, 0.475 / mean, updates * mean / 3600]
