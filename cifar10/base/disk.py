"""Whether a disk has room for what is to be written, which a start and a check ask."""
import shutil

from cifar10.base import files


def shortage(path: str, flag: str, size: int, what: str, others: int = 0) -> str | None:
    """Returns a message, with its remedy, if the disk of a directory has no room for what is to be written.

    Args:
      path: of the directory, which need not exist.
      flag: the flag that names it.
      size: bytes to be written.
      what: a phrase that says what they are.
      others: bytes that are to be written to the same disk before.
    """
    if others + size <= shutil.disk_usage(files.existing(path)).free:
        return None
    addition = f' in addition to {others / 1e6:.1f} MB' if others else ''
    return (f'{flag}={path} has no room for {size / 1e6:.1f} MB ({what}){addition}; free some space, or use another '
            f'{flag}')
