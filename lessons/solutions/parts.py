"""Solution of the exercise of lesson 7."""


def order_of_1f1b(part, parts, micro_batches):
    """Some forwards first; then each backward is followed by the next forward while there is one."""
    first = min(parts - part, micro_batches)
    order = [('forward', m) for m in range(first)]
    for m in range(micro_batches):
        order.append(('backward', m))
        if first + m < micro_batches:
            order.append(('forward', first + m))
    return order
