# refused: for part 0 of 2 with 4 micro-batches it returns F0 B0
def order_of_1f1b(part, parts, micro_batches):
    first = min(part + 1, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order
