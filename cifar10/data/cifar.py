"""CIFAR-10 and CIFAR-100, downloaded from their author, verified and unpacked.

Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
"""
import gzip
import os
import shutil
import tarfile
import zlib
from typing import NamedTuple

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.files import new_folder
from cifar10.data import download
from cifar10.data.datasets import TEST, TRAIN, Dataset

_SITE = 'https://www.cs.toronto.edu/~kriz/'


class _Archive(NamedTuple):
    """A published archive: the name of its file, its size in bytes and its SHA-256."""
    name: str
    size: int
    sha256: str


class _Published(Dataset):
    """A data set in a published archive."""

    def make(self, folder):
        """Unpacks the archive to a new folder; downloads the archive to data_dir unless it exists."""
        data_dir = os.path.dirname(folder)
        name, size, checksum = self.archive
        path = os.path.join(data_dir, name)
        existed = os.path.isfile(path)
        if not existed:
            say('', f'downloading {_SITE}{name}')
            try:
                download.fetch(_SITE + name, path, size, checksum)
            except download.DownloadError as error:
                raise download.DownloadError(
                    f'{error}; put {name} (SHA-256 {checksum}) into {data_dir} by hand') from error
        with new_folder(folder) as temporary:
            self._unpack(path, temporary)
        if existed and not download.is_published(path, size, checksum):
            say('warning', f'{path} is not the published archive (its checksum differs); using it anyway')

    def _unpack(self, path, folder):
        missing = {f'{self.folder}/{name}' for names in self.files.values() for name in names}
        try:
            with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode='r|') as tar:
                for member in tar:
                    if member.isfile() and member.name in missing and (source := tar.extractfile(member)):
                        missing.remove(member.name)
                        # Copies only the contents, not the path, owner or mode. (`tar.extract` is only safe with
                        # `filter=`, which Debian 12's Python 3.11.2 does not have.)
                        target = os.path.join(folder, os.path.basename(member.name))
                        with source, open(target, 'wb') as copy:
                            shutil.copyfileobj(source, copy)
                while stream.read(1 << 20):  # gzip checks its checksum at the end
                    pass
            if missing:
                raise tarfile.ReadError(f'{min(missing)} is missing')
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            name, _, checksum = self.archive
            raise UsageError(f'{path} cannot be unpacked ({error}); delete it to download it again, or replace it '
                             f'with {_SITE}{name} (SHA-256 {checksum})') from error


_COUNTS = {TRAIN: 50_000, TEST: 10_000}

_CIFAR10_CLASSES = (
    'airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')

# As in the archive's fine_label_names.txt.
_CIFAR100_CLASSES = (
    'apple', 'aquarium_fish', 'baby', 'bear', 'beaver', 'bed', 'bee', 'beetle', 'bicycle', 'bottle', 'bowl',
    'boy', 'bridge', 'bus', 'butterfly', 'camel', 'can', 'castle', 'caterpillar', 'cattle', 'chair',
    'chimpanzee', 'clock', 'cloud', 'cockroach', 'couch', 'crab', 'crocodile', 'cup', 'dinosaur', 'dolphin',
    'elephant', 'flatfish', 'forest', 'fox', 'girl', 'hamster', 'house', 'kangaroo', 'keyboard', 'lamp',
    'lawn_mower', 'leopard', 'lion', 'lizard', 'lobster', 'man', 'maple_tree', 'motorcycle', 'mountain',
    'mouse', 'mushroom', 'oak_tree', 'orange', 'orchid', 'otter', 'palm_tree', 'pear', 'pickup_truck',
    'pine_tree', 'plain', 'plate', 'poppy', 'porcupine', 'possum', 'rabbit', 'raccoon', 'ray', 'road',
    'rocket', 'rose', 'sea', 'seal', 'shark', 'shrew', 'skunk', 'skyscraper', 'snail', 'snake', 'spider',
    'squirrel', 'streetcar', 'sunflower', 'sweet_pepper', 'table', 'tank', 'telephone', 'television', 'tiger',
    'tractor', 'train', 'trout', 'tulip', 'turtle', 'wardrobe', 'whale', 'willow_tree', 'wolf', 'woman',
    'worm')

CIFAR10 = _Published('cifar-10-batches-bin', _CIFAR10_CLASSES, _COUNTS, archive=_Archive(
    'cifar-10-binary.tar.gz', 170052171, 'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd'))

# A record has two labels; the second is the class, the first its superclass.
CIFAR100 = _Published(
    'cifar-100-binary', _CIFAR100_CLASSES, _COUNTS, files={TRAIN: ('train.bin',), TEST: ('test.bin',)}, label_bytes=2,
    archive=_Archive(
        'cifar-100-binary.tar.gz', 168513733, '58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec'))
