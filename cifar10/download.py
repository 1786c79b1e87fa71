"""A file from the network that gets its name only once its size and checksum are right.

Knows addresses and checksums as arguments; nothing of what is in the file.
"""
import hashlib
import os
from http.client import HTTPException

from six.moves import urllib
from tqdm import tqdm

_CHUNK = 1 << 20


class DownloadError(Exception):
    """The file could not be had, or is not the one that was published."""


def sha256(path):
    """Returns the SHA-256 of the file at `path`, as lower-case hexadecimal digits."""
    digest = hashlib.sha256()
    with open(path, 'rb') as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b''):
            digest.update(chunk)
    return digest.hexdigest()


def fetch(url, path, size, checksum, timeout=30):
    """Downloads `url` to `path`, replacing what is there only by a file that is verified.

    Args:
      url: the address.
      path: the final name. Until the file is verified it is called `<path>.<process id>.part`.
      size: expected bytes.
      checksum: expected SHA-256, hexadecimal.
      timeout: seconds without a byte after which the attempt ends.

    Raises:
      DownloadError: no connection, or a file of another size or checksum. Nothing is left behind.
    """
    part = '%s.%d.part' % (path, os.getpid())
    try:
        _stream(url, part, size, timeout)
        found = os.path.getsize(part), sha256(part)
        if found != (size, checksum):
            raise DownloadError('%s sent a wrong file: %d bytes, SHA-256 %s; expected %d bytes, %s'
                                % (url, found[0], found[1], size, checksum))
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)


def _stream(url, path, size, timeout):
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response, open(path, 'wb') as stream, \
                tqdm(total=size, unit='B', unit_scale=True, desc=os.path.basename(url), disable=None) as bar:
            received = 0
            for chunk in iter(lambda: _read(response, url), b''):
                received += len(chunk)
                if received > size:  # not the published file; do not fill the disk with it
                    break
                stream.write(chunk)
                bar.update(len(chunk))
    except (urllib.error.URLError, HTTPException) as error:
        raise DownloadError('%s cannot be reached (%s)' % (url, getattr(error, 'reason', error))) from error


def _read(response, url):
    try:
        return response.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise DownloadError('%s broke off (%s)' % (url, error)) from error
