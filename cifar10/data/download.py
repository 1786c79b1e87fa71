"""Downloads files, which get their names only once their size and checksum are verified."""
import os
from http.client import HTTPException

from six.moves import urllib

from cifar10.base.console import progress_bar
from cifar10.base.errors import UsageError
from cifar10.base.files import making, new_file, sha256

_CHUNK = 1 << 20


class DownloadError(UsageError):
    """The file could not be downloaded, or is not the one that was published."""


def is_published(path: str, size: int, checksum: str) -> bool:
    """Returns whether a file has the size and the SHA-256 of the one that was published."""
    return os.path.getsize(path) == size and sha256(path) == checksum


def reach(url: str, timeout: float = 30) -> None:
    """Requests `url` without reading its content; raises a DownloadError if that fails."""
    _opened(url, timeout).close()


def fetch(url: str, path: str, size: int, checksum: str, timeout: float = 30) -> None:
    """Downloads `url` to `path`; replaces a file that is there only when the new one is verified and on the disk.

    Args:
      size: expected bytes.
      checksum: expected SHA-256, hexadecimal.
      timeout: seconds without a byte after which the attempt ends.

    Raises:
      DownloadError: no connection, or a file of another size or checksum. Nothing is left behind.
    """
    with making(path), new_file(path) as part:
        _stream(url, part, size, timeout)
        part_size = os.path.getsize(part)
        part_checksum = sha256(part)
        if (part_size, part_checksum) != (size, checksum):
            raise DownloadError(f'{url} sent a wrong file: {part_size} bytes, SHA-256 {part_checksum}; expected {size} '
                                f'bytes, {checksum}')


def _opened(url, timeout):
    """Returns the response to a request."""
    try:
        return urllib.request.urlopen(url, timeout=timeout)
    except (OSError, HTTPException) as error:  # a URLError is an OSError
        cause = getattr(error, 'reason', error)
        raise DownloadError(f'{url} cannot be reached{_through(url)} ({cause})') from error


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


def _through(url):
    """Returns a phrase with the proxy of a download, without its password, or why it has none; '' if none is set."""
    parts = urllib.parse.urlsplit(url)
    proxies = urllib.request.getproxies()
    proxy = proxies.get(parts.scheme)
    if urllib.request.proxy_bypass(parts.netloc):
        return ''
    if not proxy:
        return f' without a proxy (http_proxy is set, but {parts.scheme}_proxy is not)' if 'http' in proxies else ''
    return f" through the proxy {proxy.rpartition('@')[2]} of {parts.scheme}_proxy"


def _read(response, url):
    try:
        return response.read(_CHUNK)
    except (OSError, HTTPException) as error:
        raise DownloadError(f'the download of {url} was interrupted ({error})') from error
