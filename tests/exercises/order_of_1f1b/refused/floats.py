# refused: it returns [('forward', 0.0)
def order_of_1f1b(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    order = [('forward', m / 1) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order
