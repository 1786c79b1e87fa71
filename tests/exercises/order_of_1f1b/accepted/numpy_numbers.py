import numpy as np


def order_of_1f1b(part, parts, micro_batches):
    order, kept = [], []
    for m in np.arange(micro_batches):
        order.append(['forward', m])
        kept.append(m)
        if len(kept) == parts - part:
            order.append(['backward', kept.pop(0)])
    return order + [['backward', m] for m in kept]
