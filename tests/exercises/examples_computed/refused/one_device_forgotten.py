# refused: one device, 8 examples and 4 replicas it returns [2, 2, 2, 2]; [8, 0, 0, 0] is right
def examples_computed(faults, examples, replicas):
    if 'same batch' in faults:
        return [examples] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]
