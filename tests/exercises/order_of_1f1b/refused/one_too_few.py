# refused: it returns F0 B0 F1 B1 F2 B2 F3 B3; F0 F1 B0
def order_of_1f1b(part, parts, micro_batches):
    return [(kind, m) for m in range(micro_batches) for kind in ('forward', 'backward')]
