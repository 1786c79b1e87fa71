# refused: for shares 2 and 2 with gradients 2 and 6 it returns None, which is not a number
def weighted_mean(gradients, sizes):
    print(sum(gradients) / len(gradients))
