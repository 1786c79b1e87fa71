# refused: it raises ZeroDivisionError in line 3
def order_of_1f1b(part, parts, micro_batches):
    return [('forward', m) for m in range(parts // part)]
