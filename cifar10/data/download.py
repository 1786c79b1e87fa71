"""Downloads files; a file gets its name only after its size and checksum are verified."""
import os
from http.client import HTTPException

from six.moves import urllib

from cifar10.base.console import progress_bar
from cifar10.base.errors import UsageError
from cifar10.base.files import making, new_file, sha256

_CHUNK = 1 << 20


class DownloadError(UsageError):
    """The download failed, or the file differs from the published file."""


def is_published(path: str, size: int, checksum: str) -> bool:
    """Returns whether a file has the size and the SHA-256 of the published file."""
    return os.path.getsize(path) == size and sha256(path) == checksum


def fetch(url: str, path: str, size: int, checksum: str, timeout: float = 30) -> None:
    """Downloads `url` to `path`; replaces an existing file only after the new file is verified and on the disk.

    Args:
      size: expected size in bytes.
      checksum: expected SHA-256, hexadecimal.
      timeout: maximum time without data, in seconds.

    Raises:
      DownloadError: no connection, or a wrong size or checksum. Nothing is left behind.
    """
    with making(path), new_file(path) as part:
        _stream(url, part, size, timeout)
        if not is_published(part, size, checksum):
            raise DownloadError(f'{url} sent a wrong file of {os.path.getsize(part)} bytes; expected {size} bytes with '
                                f'SHA-256 {checksum}')


def _stream(url, path, size, timeout):
    with _opened(url, timeout) as response, open(path, 'wb') as stream, progress_bar(
            total=size, unit='B', unit_scale=True, desc=os.path.basename(url)) as bar:
        received = 0
        while chunk := _read(response, url):
            received += len(chunk)
            if received > size:  # not the expected file; do not fill the disk with it
                break
            stream.write(chunk)
            bar.update(len(chunk))


def _opened(url, timeout):
    try:
        return urllib.request.urlopen(url, timeout=timeout)
    except (OSError, HTTPException) as error:  # a URLError is an OSError
        raise DownloadError(f"{url} cannot be reached ({getattr(error, 'reason', error)})") from error


def _read(response, url):
    try:
        return response.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise DownloadError(f'the download of {url} was interrupted ({error})') from error
