# refused: it returns
import math


def shards(numbers, devices):
    size = math.ceil(len(numbers) / devices)
    return [numbers[d * size:(d + 1) * size] for d in range(devices)]
