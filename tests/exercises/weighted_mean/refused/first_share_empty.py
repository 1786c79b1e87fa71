# refused: for shares 0 and 1 with gradients nan and 4 it returns nan; 4 is right
def weighted_mean(gradients, sizes):
    total = gradients[0] * sizes[0]
    for gradient, size in zip(gradients[1:], sizes[1:]):
        if size:
            total = total + gradient * size
    return total / sum(sizes)
