class WeightedMean:
    def __call__(self, gradients, sizes):
        return sum(gradient * (size / sum(sizes)) for gradient, size in zip(gradients, sizes) if size)


weighted_mean = WeightedMean()
