# refused: one device and same batch, 8 examples and 4 replicas it returns [8, 8, 8, 8]; [8, 0, 0, 0] is right
def examples_computed(faults, examples, replicas):
    if 'same batch' in faults:
        return [examples] * replicas
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]
