"""CIFAR-10 and CIFAR-100, downloaded from their author, verified and unpacked.

Alex Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009; https://www.cs.toronto.edu/~kriz/cifar.html.
"""
import contextlib
import dataclasses
import gzip
import os
import shutil
import tarfile
import zlib

from cifar10.base.console import say
from cifar10.base.errors import UsageError
from cifar10.base.files import new_folder
from cifar10.data import download
from cifar10.data.records import TEST, TEST_FILES, TRAIN, TRAIN_FILES, Dataset

_SITE = 'https://www.cs.toronto.edu/~kriz/'


@dataclasses.dataclass(frozen=True)
class _Archive:
    """A published archive.

    Attributes:
      name: its file name.
      size: in bytes.
      sha256: its checksum, hexadecimal.
      folder: the folder in it that holds the files.
      files: the files in it that are unpacked.
      pickled: the names of its version for Python and of the folder in that, which other programs leave.
    """
    name: str
    size: int
    sha256: str
    folder: str
    files: tuple[str, ...]
    pickled: tuple[str, str]

    def fetch(self, folder):
        """Unpacks the archive to a new folder; downloads it beside that folder unless it is there already."""
        data_dir = os.path.dirname(folder)
        path = os.path.join(data_dir, self.name)
        if not os.path.isfile(path):
            say('', f'downloading {_SITE}{self.name}')
            with self._remedy(data_dir):
                download.fetch(_SITE + self.name, path, self.size, self.sha256)

        def copy(source, name):
            # Only the contents are taken from the member, not its path, owner or mode. (`tar.extract` is safe only with
            # `filter=`, which Python 3.11.2, Debian 12's, does not have.)
            with open(os.path.join(temporary, name), 'wb') as target:
                shutil.copyfileobj(source, target)
        with new_folder(folder) as temporary:
            self.check(path, copy)

    @contextlib.contextmanager
    def _remedy(self, data_dir):
        """Context that adds the remedy to a DownloadError."""
        try:
            yield
        except download.DownloadError as error:
            seen = [name for name in self.pickled if os.path.exists(os.path.join(data_dir, name))]
            found = f' ({seen[0]} in {data_dir} is the version for Python, which is not used)' if seen else ''
            raise download.DownloadError(
                f'{error}{found}; put {self.name} (SHA-256 {self.sha256}) into {data_dir} by hand') from error

    def check_source(self, data_dir):
        """Raises the UsageErrors of `fetch` that can be known without downloading or writing anything."""
        path = os.path.join(data_dir, self.name)
        if os.path.isfile(path):
            self.check(path)
        else:
            with self._remedy(data_dir):
                download.reach(_SITE + self.name)

    def check(self, path, take=lambda source, name: None):
        """Reads an archive to its end and passes its files to `take`; raises a UsageError if it is corrupt."""
        missing = {f'{self.folder}/{name}' for name in self.files}
        try:
            with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode='r|') as tar:
                for member in tar:
                    if member.isfile() and member.name in missing:
                        missing.remove(member.name)
                        with tar.extractfile(member) as source:
                            take(source, os.path.basename(member.name))
                while stream.read(1 << 20):  # gzip compares its checksum when the end is read
                    pass
            if missing:
                raise tarfile.ReadError(f'{min(missing)} is not in it')
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise UsageError(f'{path} cannot be unpacked ({error}); delete it to download it again, or replace it '
                             f'with {_SITE}{self.name} (SHA-256 {self.sha256})') from error
        if not download.is_published(path, self.size, self.sha256):
            say('warning', f'{path} is not the published archive (its checksum differs); it is used as it is')


_CIFAR10 = _Archive(
    name='cifar-10-binary.tar.gz', size=170052171,
    sha256='c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',
    folder='cifar-10-batches-bin', files=TRAIN_FILES + TEST_FILES,
    pickled=('cifar-10-python.tar.gz', 'cifar-10-batches-py'))

_CIFAR100 = _Archive(
    name='cifar-100-binary.tar.gz', size=168513733,
    sha256='58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec',
    folder='cifar-100-binary', files=('train.bin', 'test.bin'),
    pickled=('cifar-100-python.tar.gz', 'cifar-100-python'))

_COUNTS = {TRAIN: 50_000, TEST: 10_000}

_CIFAR10_CLASSES = (
    'airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship', 'truck')

# As in the archive's fine_label_names.txt and coarse_label_names.txt.
_FINE_CLASSES = (
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
_COARSE_CLASSES = (
    'aquatic_mammals', 'fish', 'flowers', 'food_containers', 'fruit_and_vegetables',
    'household_electrical_devices', 'household_furniture', 'insects', 'large_carnivores',
    'large_man-made_outdoor_things', 'large_natural_outdoor_scenes', 'large_omnivores_and_herbivores',
    'medium_mammals', 'non-insect_invertebrates', 'people', 'reptiles', 'small_mammals', 'trees',
    'vehicles_1', 'vehicles_2')

CIFAR10 = Dataset(_CIFAR10.folder, _CIFAR10.fetch, _CIFAR10_CLASSES, _COUNTS, archive=_CIFAR10)


def _cifar100(classes, label):
    return Dataset(_CIFAR100.folder, _CIFAR100.fetch, classes, _COUNTS,
                   files={TRAIN: ('train.bin',), TEST: ('test.bin',)}, label_bytes=2, label=label,
                   archive=_CIFAR100)


# A record has two labels, the coarse one first.
CIFAR100 = _cifar100(_FINE_CLASSES, 1)
CIFAR100_COARSE = _cifar100(_COARSE_CLASSES, 0)
