# refused: of shape (2,); shape () is right
def weighted_mean(gradients, sizes):
    return gradients
