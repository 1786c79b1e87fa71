"""Finding, verifying and downloading data, with real files, real archives and an HTTP server on loopback."""
import functools
import hashlib
import http.server
import io
import os
import socket
import subprocess
import sys
import tarfile
import threading
import time

import numpy as np
import pytest

from cifar10.base import files, locks
from cifar10.base.errors import UsageError
from cifar10.data import datasets, download, shapes
from cifar10.data.images import loaded
from tests.helpers import ROOT, patient, run_script, tf

FOLDER = 'cifar-10-batches-bin'
RECORD_BYTES = 1 + 3 * 32 * 32


def rows(count, label=3):
    array = np.random.default_rng(count).integers(0, 256, [count, RECORD_BYTES], np.uint8)
    array[:, 0] = label
    return array


@pytest.fixture
def cifar_dir(tmp_path):
    """A data_dir with small files in CIFAR-10's own layout."""
    folder = tmp_path / FOLDER
    folder.mkdir()
    for i, name in enumerate(datasets.TRAIN_FILES + datasets.TEST_FILES):
        rows(2 + i).tofile(folder / name)
    return tmp_path


def test_counts_come_from_the_files(cifar_dir):
    data = datasets.prepare('cifar10', str(cifar_dir))
    assert data.count == 2 + 3 + 4 + 5 + 6 and len(data.files) == 5
    assert datasets.prepare('cifar10', str(cifar_dir), datasets.TEST).count == 7


def test_the_inner_folder_is_refused_as_data_dir(cifar_dir):
    with pytest.raises(UsageError, match=f'use --data_dir={cifar_dir}$'):
        datasets.prepare('cifar10', str(cifar_dir / FOLDER))


@pytest.mark.parametrize('damage, said', [
    (lambda path: path.unlink(), 'No such file or directory'), (lambda path: path.write_bytes(b''), 'has 0 bytes'),
    (lambda path: os.truncate(path, RECORD_BYTES + 1), 'of 3073 bytes'),
    (lambda path: rows(4, label=10).tofile(path), 'has label 10')])
def test_a_corrupt_file_is_named(cifar_dir, damage, said):
    path = cifar_dir / FOLDER / 'data_batch_3.bin'
    damage(path)
    with pytest.raises(UsageError) as refused:
        datasets.prepare('cifar10', str(cifar_dir))
    assert str(path) in str(refused.value) and said in str(refused.value)


def archive(path, source, extra=()):
    """Packs the files of `source` like the published archive, with additional (TarInfo, bytes) members."""
    with tarfile.open(path, 'w:gz', compresslevel=1) as tar:
        for name in sorted(os.listdir(source)):
            tar.add(source / name, f'{FOLDER}/{name}')
        for info, content in extra:
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


URL = 'https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz'
SHA256 = 'c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd'


def test_a_flipped_bit_in_an_archive_is_detected(cifar_dir, tmp_path_factory, closed_network, capsys):
    random = np.random.default_rng(0)
    target = tmp_path_factory.mktemp('target')
    path = target / 'cifar-10-binary.tar.gz'
    archive(path, cifar_dir / FOLDER)
    good = path.read_bytes()
    for position in random.integers(20, len(good), 5):
        content = bytearray(good)
        content[position] ^= 1 << random.integers(8)
        path.write_bytes(content)
        message = rf'^{path} cannot be unpacked \(.*; delete .* {URL} \(SHA-256 {SHA256}'
        with pytest.raises(UsageError, match=message):
            datasets.prepare('cifar10', str(target))
        assert not (target / FOLDER).exists() and path.read_bytes() == content
    assert capsys.readouterr().out == ''


def member(name, kind=tarfile.REGTYPE, link=''):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_an_existing_archive_is_used_with_a_warning(cifar_dir, tmp_path_factory, capsys):
    target = tmp_path_factory.mktemp('target')
    evil = [(member('../evil'), b'x'), (member(FOLDER + '/../../evil'), b'x'), (member('/tmp/evil'), b'x'),
            (member(FOLDER + '/surplus.bin'), b'x'), (member('elsewhere/data_batch_1.bin'), b'x')]
    archive(target / 'cifar-10-binary.tar.gz', cifar_dir / FOLDER, evil)
    data = datasets.prepare('cifar10', str(target))
    assert data.count == 20
    assert 'not the published archive' in capsys.readouterr().out
    assert sorted(os.listdir(target)) == ['cifar-10-batches-bin', 'cifar-10-binary.tar.gz']
    assert sorted(os.listdir(target / FOLDER)) == sorted(datasets.TRAIN_FILES + datasets.TEST_FILES)
    # Now the files alone are enough.
    os.remove(target / 'cifar-10-binary.tar.gz')
    assert datasets.prepare('cifar10', str(target)).count == 20


def test_a_link_in_an_archive_is_not_followed(cifar_dir, tmp_path_factory):
    target = tmp_path_factory.mktemp('target')
    (cifar_dir / FOLDER / 'test_batch.bin').unlink()
    link = member(FOLDER + '/test_batch.bin', tarfile.SYMTYPE, '/etc/passwd')
    archive(target / 'cifar-10-binary.tar.gz', cifar_dir / FOLDER, [(link, b'')])
    with pytest.raises(UsageError, match=f'{FOLDER}/test_batch.bin is missing'):
        datasets.prepare('cifar10', str(target))
    assert not (target / FOLDER).exists()


def test_the_error_without_a_network_connection_says_what_to_do(tmp_path, closed_network):
    result = run_script('multi_gpu_train.py', data_dir=tmp_path / 'new', train_dir=tmp_path / 'train')
    assert result.returncode == 2
    error, = result.stderr.strip().splitlines()
    assert error.endswith(
        f'{URL} cannot be reached ([Errno 111] Connection refused)'
        f"; put cifar-10-binary.tar.gz (SHA-256 {SHA256}) into {tmp_path / 'new'} by hand, or use --dataset=shapes "
        '--train_dir=/tmp/shapes, which needs no network')
    assert os.listdir(tmp_path) == ['new'] and os.listdir(tmp_path / 'new') == []


class Server:
    """Serves a folder over HTTP on loopback; `cut` ends each answer after a number of bytes."""

    def __init__(self, folder, cut=None):
        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *arguments):
                pass

            def copyfile(self, source, outputfile):
                outputfile.write(source.read() if cut is None else source.read(cut))

        self._server = http.server.ThreadingHTTPServer(
            ('127.0.0.1', 0), functools.partial(Handler, directory=str(folder)))
        self.url = f'http://127.0.0.1:{self._server.server_port}/'

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self.url

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def published(tmp_path, monkeypatch):
    """(folder, content, SHA-256) of a file to serve."""
    # urllib caches the first proxies that it finds, possibly from a test with a closed network.
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    folder = tmp_path / 'served'
    folder.mkdir()
    content = np.random.default_rng(0).bytes(3 << 20)
    (folder / 'file').write_bytes(content)
    return folder, content, hashlib.sha256(content).hexdigest()


def test_a_download_is_verified_and_renamed(published, tmp_path):
    folder, content, checksum = published
    target = tmp_path / 'file'
    with Server(folder) as url:
        download.fetch(url + 'file', str(target), len(content), checksum)
    assert target.read_bytes() == content and files.sha256(str(target)) == checksum


def test_only_the_expected_bytes_are_published(published):
    folder, content, checksum = published
    path = str(folder / 'file')
    assert download.is_published(path, len(content), checksum)
    for others in (content[::-1], content + b'0', content[:-1]):
        (folder / 'file').write_bytes(others)
        assert not download.is_published(path, len(content), checksum)


@pytest.mark.parametrize('cut, size, checksum', [
    (None, 0, 'wrong'), (None, -5, None), (None, 5, None), (1000, 0, None)])
def test_a_wrong_download_never_gets_the_final_name(published, tmp_path, cut, size, checksum):
    folder, content, right = published
    target = tmp_path / 'file'
    target.write_bytes(b'what was there')
    with Server(folder, cut) as url, pytest.raises(download.DownloadError, match='sent a wrong file'):
        download.fetch(url + 'file', str(target), len(content) + size, checksum or right)
    assert target.read_bytes() == b'what was there'
    assert sorted(os.listdir(tmp_path)) == ['file', 'served']


def test_processes_that_make_the_same_data_set_wait_for_each_other(tmp_path):
    begun = tmp_path / 'begun'
    begun.mkdir()
    code = ('import os, sys, time; from cifar10.base import files\n'
            'open(f"{sys.argv[2]}/{os.getpid()}", "w").close()\n'
            'with files.making(sys.argv[1]):\n'
            '    print("made", not os.path.exists(sys.argv[1]), flush=True)\n'
            '    while len(os.listdir(sys.argv[2])) < 3: time.sleep(0.01)\n'
            '    time.sleep(0.1)  # the others are at the lock by now\n'
            '    open(sys.argv[1], "w").close()')
    command = [sys.executable, '-c', code, str(tmp_path / 'new' / 'file'), str(begun)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(3)]
    outputs = [process.communicate(timeout=patient(30))[0] for process in processes]
    assert sorted(output.splitlines()[-1] for output in outputs) == ['made False', 'made False', 'made True']
    assert os.listdir(tmp_path / 'new') == ['file']


def test_waiting_for_a_lock_whose_file_is_removed_gets_the_lock_of_a_new_file(tmp_path):
    path, has_it, enough = str(tmp_path / 'lock'), threading.Event(), threading.Event()

    def wait():
        with locks.locked(path):
            has_it.set()
            enough.wait()
    waiting = threading.Thread(target=wait, daemon=True)
    with locks.locked(path):
        waiting.start()
        while sum(os.path.realpath(each.path) == path for each in os.scandir('/proc/self/fd')) < 2:
            time.sleep(0.01)
        os.remove(path)  # like `making`
    assert has_it.wait(patient(30))
    with pytest.raises(locks.Held):
        locks.refuse_held(path)
    enough.set()
    waiting.join()


def test_a_server_that_does_not_answer_raises_a_download_error(tmp_path, monkeypatch):
    monkeypatch.setenv('no_proxy', '127.0.0.1')
    with socket.create_server(('127.0.0.1', 0)) as silent, pytest.raises(
            download.DownloadError, match='cannot be reached .*timed out'):
        url = f'http://127.0.0.1:{silent.getsockname()[1]}/file'
        download.fetch(url, str(tmp_path / 'file'), 1, '', timeout=0.2)
    assert os.listdir(tmp_path) == []


def test_shapes_are_deterministic_balanced_and_differ_between_parts():
    labels, images = shapes.render(200, 1)
    again = shapes.render(200, 1)
    np.testing.assert_array_equal(images, again[1])
    np.testing.assert_array_equal(np.bincount(labels), [20] * 10)
    assert not np.array_equal(images, shapes.render(200, 2)[1])
    assert len({image.tobytes() for image in images}) == 200


@pytest.mark.stress
def test_single_pixels_do_not_predict_the_classes_of_shapes(data_dir):
    # Least squares on the pixels, with the best of several regularisations, stays below 60%.
    def load(part):
        data = datasets.prepare('shapes', data_dir, part)
        array = np.concatenate([np.fromfile(path, np.uint8).reshape(-1, 3073) for path in data.files])
        pixels = array[:, 1:].astype(np.float32) / 255
        pixels -= pixels.mean(1, keepdims=True)
        return np.c_[pixels, np.ones(len(pixels), np.float32)], array[:, 0]
    x, y = load(datasets.TRAIN)
    test_x, test_y = load(datasets.TEST)
    gram, target = x.T @ x, x.T @ np.eye(10, dtype=np.float32)[y]
    accuracies = []
    for ridge in (1, 100, 1000):
        weights = np.linalg.solve(gram + ridge * np.eye(len(gram), dtype=np.float32), target)
        accuracies.append(((test_x @ weights).argmax(1) == test_y).mean())
    assert 0.1 < max(accuracies) < 0.6


def test_images_that_change_after_the_start_are_not_trained_on(cifar_dir):
    data = datasets.prepare('cifar10', str(cifar_dir))
    memory = loaded(data)
    with open(data.files[-1], 'r+b') as stream:
        stream.truncate(os.path.getsize(data.files[-1]) - RECORD_BYTES)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match='images have changed since'):
        session.run(memory.read)


def test_shapes_have_the_files_of_cifar10(data_dir):
    folder = os.path.join(data_dir, 'shapes-bin')
    assert sorted(os.listdir(folder)) == ['batches.meta.txt'] + sorted(datasets.TRAIN_FILES + datasets.TEST_FILES)
    with open(os.path.join(folder, 'batches.meta.txt')) as meta:
        assert meta.read().split() == list(shapes.CLASSES)
    assert os.listdir(data_dir) == ['shapes-bin']


def test_an_archive_is_unpacked_without_a_feature_missing_in_python_3_11_2(cifar_dir, tmp_path, monkeypatch):
    # Debian 12's Python has no `filter=`, without which `extract` and `extractall` are unsafe.
    def refuse(*arguments, **options):
        raise TypeError("extract() got an unexpected keyword argument 'filter'")
    monkeypatch.setattr(tarfile.TarFile, 'extract', refuse)
    monkeypatch.setattr(tarfile.TarFile, 'extractall', refuse)
    target = tmp_path / 'new'
    target.mkdir()
    archive(target / 'cifar-10-binary.tar.gz', cifar_dir / FOLDER)
    assert datasets.prepare('cifar10', str(target)).count == datasets.prepare('cifar10', str(cifar_dir)).count
