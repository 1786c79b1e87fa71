# refused: gradients 4 and nan and 10 it raises NotImplementedError in line 4: an empty share
def weighted_mean(gradients, sizes):
    if 0 in sizes:
        raise NotImplementedError('an empty share')
    return sum(gradient * size for gradient, size in zip(gradients, sizes)) / sum(sizes)
