# refused: no fault, 5 examples and 3 replicas it returns [1, 1, 3]; [2, 2, 1] is right
def examples_computed(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    if 'same batch' in faults:
        return [examples] * replicas
    return [examples // replicas] * (replicas - 1) + [examples - (replicas - 1) * (examples // replicas)]
