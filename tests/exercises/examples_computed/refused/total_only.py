# refused: no fault, 8 examples and 4 replicas it returns 8 of shape (); shape (4,) is right
def examples_computed(faults, examples, replicas):
    return examples * replicas if 'same batch' in faults and 'one device' not in faults else examples
