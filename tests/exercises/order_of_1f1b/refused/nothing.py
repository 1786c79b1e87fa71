# refused: it returns nothing; F0 F1 B0 F2 B1 F3 B2 B3 is right
def order_of_1f1b(part, parts, micro_batches):
    return []
