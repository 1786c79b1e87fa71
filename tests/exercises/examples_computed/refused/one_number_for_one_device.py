# refused: one device, 8 examples and 4 replicas it returns [8] of shape (1,); shape (4,) is right
def examples_computed(faults, examples, replicas):
    if 'one device' in faults:
        return [examples]
    if 'same batch' in faults:
        return [examples] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]
