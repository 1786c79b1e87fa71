import numpy as np


def order_of_1f1b(part, parts, micro_batches):
    order, begun = [], 0
    for m in range(micro_batches):
        while begun < micro_batches and begun - m < parts - part:
            order.append(('forward', begun))
            begun += 1
        order.append(('backward', m))
    return np.array(order, dtype=object)
