# refused: it returns F1 F2 B1
def order_of_1f1b(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    order = [('forward', m + 1) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m + 1))
        if first + m < micro_batches:
            order.append(('forward', first + m + 1))
    return order
