from itertools import zip_longest


def shards(numbers, devices):
    size = -(-len(numbers) // devices)
    filled = tuple(zip_longest(*[iter(list(numbers) + [0] * (-len(numbers) % devices))] * size, fillvalue=0))
    return filled
