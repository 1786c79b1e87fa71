"""Whitening: filters from the eigenvectors of image patches, which decorrelate what the first layer sees.

Pure NumPy, computed once when a run begins; the filters are stored in its checkpoints.
"""
import numpy as np

_EPSILON = 5e-4
_PATCH = 2


def whitening_filters(images: np.ndarray) -> np.ndarray:
    """Returns filters whose outputs on the images are uncorrelated and of variance 1, each with its negative.

    The eigenvectors of the patches' second moments, each divided by the root of its eigenvalue; as the first layer of
    cifar10-airbench (Keller Jordan 2024), after Page's cifar10-fast.

    Args:
      images: float32 [n, height, width, channels], as the network sees them.

    Returns:
      float32 [2, 2, channels, 2 * 4 * channels].
    """
    height, width, channels = images.shape[1:]
    patches = np.concatenate([images[:, row:height - _PATCH + 1 + row, column:width - _PATCH + 1 + column]
                              for row in range(_PATCH) for column in range(_PATCH)], -1)
    patches = patches.reshape(-1, _PATCH * _PATCH * channels)
    values, vectors = np.linalg.eigh((patches.T @ patches / len(patches)).astype(np.float64))
    filters = (vectors / np.sqrt(values + _EPSILON))[:, ::-1]  # the largest eigenvalue first
    filters = np.concatenate([filters, -filters], 1).astype(np.float32)
    return filters.reshape(_PATCH, _PATCH, channels, -1)
