def after_update(faults, w, x, replicas, rate):
    count = 1 if 'one device' in faults else replicas
    total, first = 0.0, 0
    for k in range(count):
        size = len(x) // count + (k < len(x) % count)
        indices = range(len(x)) if 'same batch' in faults else range(first, first + size)
        first += size
        for i in indices:
            total += 2 * (w - float(x[i])) / (len(indices) if 'means added' in faults else len(x))
    return w - rate * total
