"""Reads and downloads Fashion-MNIST, and generates images in the same format.

Used by examples/lenet_fashion_mnist.py and lessons/split_batch.py.
"""
import gzip
import os
import zlib

import numpy as np

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.data import download

URL = 'https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/'
FILES = {  # name: bytes, SHA-256
    'train-images-idx3-ubyte.gz': (26421880, '3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84'),
    'train-labels-idx1-ubyte.gz': (29515, 'a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845'),
    't10k-images-idx3-ubyte.gz': (4422102, '346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073'),
    't10k-labels-idx1-ubyte.gz': (5148, '67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5')}
_MAX_BYTES = 16 + 60000 * 28 * 28  # size of the largest file, unpacked


def missing(data_dir: str) -> list[str]:
    """Returns the names of the files that are missing in a directory."""
    return [name for name in FILES if not os.path.exists(os.path.join(data_dir, name))]


def read(data_dir: str) -> list[np.ndarray]:
    """Returns uint8 arrays: training images [n, 28, 28], their labels [n], test images, their labels.

    Missing files are downloaded into the directory, which is created if necessary.

    Raises:
      DownloadError: a file is missing and the download fails, or the downloaded file differs from the published file.
      UsageError: the directory is not writable, or a file in it is broken.
    """
    arrays = []
    for name, (size, checksum) in FILES.items():
        path = os.path.join(data_dir, name)
        if os.path.exists(path):
            if not download.is_published(path, size, checksum):
                say('warning', f'{path} is not the published file (its checksum differs); using it anyway')
        else:
            try:
                os.makedirs(data_dir, exist_ok=True)
                download.fetch(URL + name, path, size, checksum)
            except OSError as error:
                raise UsageError(f'{error}; put the four files of Fashion-MNIST into {data_dir} by hand') from error
        arrays.append(_read_idx(path))
    return arrays


def generate(num_train: int = 60000, num_test: int = 10000) -> list[np.ndarray]:
    """Generates arrays in the same format: a pattern of 7 x 7 fields for each class, with noise.

    A network soon classifies all of these images correctly. For a learning curve, see `generate_varied`.
    """
    generator = np.random.default_rng(0)
    patterns = ((generator.random([10, 7, 7]) < 0.4).repeat(4, 1).repeat(4, 2) * 200).astype(np.uint8)
    arrays = []
    for count in (num_train, num_test):
        labels = generator.integers(0, 10, count, np.uint8)
        arrays += [patterns[labels] + generator.integers(0, 56, [count, 28, 28], np.uint8), labels]
    return arrays


def generate_varied(num_train: int = 25600, num_test: int = 5000) -> list[np.ndarray]:
    """Generates arrays in the same format. LeNet learns from them gradually, over several epochs.

    Each class has three patterns of 4 x 4 black or white fields. The probability of white fields increases from 0.1 in
    class 0 to 0.9 in class 9, so the brightness is a hint to the class, and the pattern determines it. An image is one
    of the three patterns, with each field inverted with a probability of 0.1.
    """
    generator = np.random.default_rng(0)
    patterns = generator.random([10, 3, 4, 4]) < np.linspace(0.1, 0.9, 10)[:, None, None, None]
    arrays = []
    for count in (num_train, num_test):
        labels = generator.integers(0, 10, count, np.uint8)
        fields = patterns[labels, generator.integers(0, 3, count)] ^ (generator.random([count, 4, 4]) < 0.1)
        arrays += [(fields * np.uint8(255)).repeat(7, 1).repeat(7, 2), labels]
    return arrays


def _read_idx(path):
    """Returns the uint8 array in an idx.gz file; the format is from http://yann.lecun.com/exdb/mnist."""
    try:
        with gzip.open(path) as stream:
            content = stream.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise ValueError('it unpacks to more than the published file')
        # Two zero bytes, the type, the rank, the sizes as big-endian 32-bit integers, and the values.
        shape = np.frombuffer(content, '>u4', content[3], 4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as error:
        raise UsageError(f'{path} is not an idx.gz file of bytes ({error}); delete it and start again') from error
