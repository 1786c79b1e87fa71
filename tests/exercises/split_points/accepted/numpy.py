import numpy as np


def split_points(points, processes):
    shares = np.array_split(np.arange(points), processes)
    ends = np.cumsum([len(share) for share in shares])
    return [(end - len(share), end, len(share) / points) for end, share in zip(ends, shares)]
