# refused: it returns 8 when it is called a second time; the first time 4
total = 0


def weighted_mean(gradients, sizes):
    global total
    total = total + sum(gradient * size for gradient, size in zip(gradients, sizes) if size) / sum(sizes)
    return total
