"""Plots the images that a run feeds its network, before and after augmentation, with the names of their classes."""
import warnings

from cifar10.training.inputs import Inputs


def draw(path: str, blocks: list[Inputs]) -> None:
    """Draws a PNG with two rows for each block: the originals, and the augmented images below them."""
    from matplotlib import pyplot
    columns = len(blocks[0].names)
    figure, axes = pyplot.subplots(2 * len(blocks), columns, figsize=(columns, 2.4 * len(blocks)), squeeze=False)
    for i, block in enumerate(blocks):
        for k, name in enumerate(block.names):
            image = block.augmented[k]
            low = image.min()
            high = image.max()
            axes[2 * i, k].imshow(block.originals[k])
            title = name.encode(errors='backslashreplace').decode()  # the name of a folder may not be UTF-8
            axes[2 * i, k].set_title(title, fontsize=8, parse_math=False)
            axes[2 * i + 1, k].imshow((image - low) / max(high - low, 1e-6))
        height, width = block.augmented.shape[1:3]
        axes[2 * i, 0].set_ylabel(f'{block.title}:\nbefore, {block.originals.shape[1]}x{block.originals.shape[2]}',
                                  fontsize=7)
        axes[2 * i + 1, 0].set_ylabel(f'as fed,\n{height}x{width}', fontsize=7)
    for axis in axes.flat:
        axis.set_xticks([])
        axis.set_yticks([])
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', 'Glyph')  # matplotlib's font may lack a name's characters
        figure.savefig(path, dpi=120, bbox_inches='tight', format='png')
    pyplot.close(figure)

