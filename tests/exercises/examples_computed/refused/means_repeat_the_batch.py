# refused: means added, 8 examples and 4 replicas it returns [8, 8, 8, 8]; [2, 2, 2, 2] is right
def examples_computed(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    if faults & {'same batch', 'means added'}:
        return [examples] * replicas
    return [examples // replicas + (k < examples % replicas) for k in range(replicas)]
