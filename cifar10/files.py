"""Files and folders that appear whole or not at all, whatever kills the process that writes them."""
import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def new_folder(folder: str) -> Iterator[str]:
    """Context with the path of a temporary folder, which takes the name `folder` when all went well."""
    parent, name = os.path.split(os.path.abspath(folder))
    temporary = tempfile.mkdtemp(prefix=f'.{name}.', dir=parent)
    try:
        yield temporary
        if not os.path.isdir(folder) or not os.listdir(folder):  # another process may have been faster
            os.chmod(temporary, 0o755)
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def replace(path: str, text: str) -> None:
    """Writes a text file, in place of the one that is there."""
    with open(path + '.part', 'w') as stream:
        stream.write(text)
    os.replace(path + '.part', path)
