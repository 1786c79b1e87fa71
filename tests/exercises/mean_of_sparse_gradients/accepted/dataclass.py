from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass
class Sparse:
    values: np.ndarray
    indices: np.ndarray


def mean_of_sparse_gradients(gradients):
    return Sparse(np.concatenate([values for values, _ in gradients]) / len(gradients),
                  np.concatenate([indices for _, indices in gradients]))
