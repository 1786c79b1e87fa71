# refused: for part 0 of 4 with 2 micro-batches it returns F0 F1 F2 F3 B0 B1; F0 F1 B0 B1 is right
def order_of_1f1b(part, parts, micro_batches):
    first = parts - part
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order
