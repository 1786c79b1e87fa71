"""The picture of a batch: each image as it is in the data set and as the network gets it, the worst first."""
import warnings
from collections.abc import Sequence

import numpy as np

from cifar10.tools.replay.probe import Batch, TowerProbe
from cifar10.tools.replay.report import worst_first

_COLUMNS = 16


def draw(path: str, title: str, batch: Batch, tower: TowerProbe, classes: Sequence[str]) -> None:
    """Draws a PNG of a tower's batch: two images for each example, and its loss, index, label and prediction.

    Args:
      path: of the file.
      title: of the picture.
      batch: of the tower.
      tower: what happened in the tower.
      classes: the names of the classes.
    """
    from matplotlib import pyplot
    order = worst_first(tower.cross_entropies)
    columns = min(_COLUMNS, len(order))
    figure, axes = pyplot.subplots(-(-len(order) // columns), columns, squeeze=False,
                                   figsize=(1.1 * columns, 2.2 * -(-len(order) // columns) + 0.4))
    for axis in axes.flat:
        axis.axis('off')
    for axis, i in zip(axes.flat, order):
        axis.imshow(_above_each_other(batch.originals[i].transpose(1, 2, 0), batch.images[i]))
        label = classes[tower.labels[i]]
        prediction = classes[tower.predictions[i]]
        answer = label if label == prediction else f'{label}, not {prediction}'
        text = f'{tower.cross_entropies[i]:.3g}  #{tower.examples[i]}\n{answer}'
        axis.set_title(text.encode(errors='backslashreplace').decode(), fontsize=5, parse_math=False)
    figure.suptitle(title, fontsize=8)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph')  # matplotlib's font may lack a name's characters
        figure.savefig(path, dpi=120, bbox_inches='tight', format='png')
    pyplot.close(figure)


def _above_each_other(original, fed):
    """Returns the original above the image as it is fed, in the same size; pixels that are not finite are red."""
    finite = np.isfinite(fed).all(-1, keepdims=True)
    values = fed[finite[..., 0]]
    low, high = (values.min(), values.max()) if values.size else (0, 1)
    shown = np.where(finite, (fed - low) / max(high - low, 1e-6), [1.0, 0.0, 0.0])
    size = len(original)
    rows = np.arange(size) * len(fed) // size
    below = shown[rows][:, np.arange(size) * fed.shape[1] // size]
    return np.concatenate([original / 255, np.ones([2, size, 3]), below])
