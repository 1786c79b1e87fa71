def examples_computed(faults, examples, replicas):
    count = 1 if 'one device' in faults else replicas
    sizes = [0] * replicas
    for i in range(examples):
        for k in range(count) if 'same batch' in faults else [i % count]:
            sizes[k] += 1
    return sizes
