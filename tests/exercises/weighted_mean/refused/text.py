# refused: it returns '3', which is not a number
def weighted_mean(gradients, sizes):
    return '3'
