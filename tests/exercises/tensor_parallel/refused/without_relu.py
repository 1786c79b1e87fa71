# refused: it returns
def tensor_parallel(x, w1_parts, b1_parts, w2_parts, b2, all_reduce):
    return [total + b2 for total in all_reduce([(x @ w1 + b1) @ w2
                                                for w1, b1, w2 in zip(w1_parts, b1_parts, w2_parts)])]
