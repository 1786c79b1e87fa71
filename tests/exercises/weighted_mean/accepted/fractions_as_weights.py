from fractions import Fraction


def weighted_mean(gradients, sizes):
    weights = [Fraction(size, sum(sizes)) for size in sizes]
    return sum(gradient * float(weight) for gradient, weight in zip(gradients, weights) if weight)
