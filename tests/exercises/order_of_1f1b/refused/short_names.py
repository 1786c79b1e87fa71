# refused: it returns [('F', 0)
def order_of_1f1b(part, parts, micro_batches):
    return [(kind, m) for kind in 'FB' for m in range(micro_batches)]
