# refused: it returns a pair that is not two arrays of numbers
def mean_of_sparse_gradients(gradients):
    return 'values', 'indices'
