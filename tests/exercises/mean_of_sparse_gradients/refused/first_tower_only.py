# refused: for two towers with different rows
def mean_of_sparse_gradients(gradients):
    return gradients[0]
