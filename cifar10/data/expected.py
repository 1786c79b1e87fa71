"""A data set whose files do not exist yet: what they will hold, and what making them needs."""
import dataclasses
import os
from typing import Any, NamedTuple

from cifar10.base.disk import shortage
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS
from cifar10.data import records
from cifar10.data.records import TRAIN, Records


class Expected(NamedTuple):
    """What `records.prepare` will make.

    Attributes:
      parts: the Records of each part. In a folder of images every file counts as an image.
      how: how it begins, such as 'downloading 170 MB'.
      num_bytes: the size of the files on the disk, with a download.
      archive: as a Dataset has it.
    """
    parts: dict[str, Records]
    how: str
    num_bytes: int
    archive: Any

    @property
    def parent(self) -> str:
        """The directory that will hold the folder of the files."""
        return os.path.dirname(self.parts[TRAIN].folder)

    @property
    def flag(self) -> str:
        """The flag that names this directory."""
        return '--dataset' if DATASETS.is_own(self.parts[TRAIN].dataset) else '--data_dir'

    @property
    def what(self) -> str:
        """A phrase that says how much the files take."""
        return f'the data take {self.num_bytes / 1e6:.1f} MB'

    def check_source(self) -> None:
        """Raises a UsageError if the archive is damaged, or cannot be downloaded."""
        if self.archive:
            self.archive.check_source(self.parent)

    def check_space(self) -> None:
        """Raises a UsageError if the disk has no room for the files."""
        if problem := shortage(self.parent, self.flag, self.num_bytes, self.what):
            raise UsageError(problem)


def of(settings: Any) -> Expected | None:
    """Returns what `records.of` will make, given a run's `DataSettings`, or None if the files exist already.

    Raises a UsageError if the files cannot be made.
    """
    dataset, folder = records.located(settings.dataset, settings.data_dir, settings.test_fraction, settings.image_size)
    if os.path.isdir(folder):
        return None
    classes, counts = dataset.expected()
    parts = {}
    for part in dataset.files:
        data = dataset.records(settings.dataset, folder, part, classes, settings.image_size)
        parts[part] = dataclasses.replace(data, count=counts[part])
    how, num_bytes = 'preparing it', sum(part.count * part.record_bytes for part in parts.values())
    if archive := dataset.archive:
        how = 'unpacking it'
        if not os.path.isfile(os.path.join(settings.data_dir, archive.name)):
            how = f'downloading {archive.size / 1e6:.0f} MB'
            num_bytes += archive.size
    return Expected(parts, how, num_bytes, dataset.archive)
