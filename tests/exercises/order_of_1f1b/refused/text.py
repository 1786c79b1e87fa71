# refused: it returns 'F0 F1 B0'
def order_of_1f1b(part, parts, micro_batches):
    return 'F0 F1 B0'
