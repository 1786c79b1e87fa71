# refused: for shares 2 and 2 with gradients 2 and 6 it changes its argument gradients from [2, 6] to [1, 3]
def weighted_mean(gradients, sizes):
    for k, size in enumerate(sizes):
        gradients[k] *= size / sum(sizes)
    return sum(gradient for gradient, size in zip(gradients, sizes) if size)
