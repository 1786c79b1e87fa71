# refused: no fault, 5 examples and 3 replicas it returns [2, 2, 2]; [2, 2, 1] is right
def examples_computed(faults, examples, replicas):
    if 'one device' in faults:
        return [examples] + [0] * (replicas - 1)
    return [examples if 'same batch' in faults else -(-examples // replicas)] * replicas
