# refused: one device, 8 examples and 4 replicas it returns [2, 0, 0, 0]; [8, 0, 0, 0] is right
def examples_computed(faults, examples, replicas):
    sizes = [examples // replicas + (k < examples % replicas) for k in range(replicas)]
    if 'same batch' in faults:
        sizes = [examples] * replicas
    if 'one device' in faults:
        sizes[1:] = [0] * (replicas - 1)
    return sizes
