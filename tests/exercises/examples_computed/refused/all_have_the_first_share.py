# refused: same batch, 8 examples and 4 replicas it returns [2, 2, 2, 2]; [8, 8, 8, 8] is right
def examples_computed(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    if 'same batch' in faults:
        return [examples // replicas] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]
