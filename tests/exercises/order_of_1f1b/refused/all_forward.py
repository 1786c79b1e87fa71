# refused: for part 0 of 2 with 4 micro-batches it returns F0 F1 F2 F3 B0 B1 B2 B3; F0 F1 B0 F2 B1 F3 B2 B3 is
def order_of_1f1b(part, parts, micro_batches):
    return [(kind, m) for kind in ('forward', 'backward') for m in range(micro_batches)]
