def shards(numbers, devices):
    numbers = list(numbers)
    size = (len(numbers) + devices - 1) // devices
    numbers += [0] * (size * devices - len(numbers))
    return [numbers[d * size:(d + 1) * size] for d in range(devices)]
