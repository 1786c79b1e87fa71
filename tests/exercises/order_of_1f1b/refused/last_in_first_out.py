# refused: it returns F0 F1 B1
def order_of_1f1b(part, parts, micro_batches):
    order, kept = [], []
    for m in range(micro_batches):
        order.append(('forward', m))
        kept.append(m)
        if len(kept) == parts - part:
            order.append(('backward', kept.pop()))
    return order + [('backward', kept.pop()) for _ in list(kept)]
