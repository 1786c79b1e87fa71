# refused: it returns F0 F1 B0 F2 B1 F3 B2;
def order_of_1f1b(part, parts, micro_batches):
    first = min(parts - part, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches - 1):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order
