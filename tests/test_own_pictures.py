"""Users' data sets: folders of images, converted once; and CIFAR-100."""
import csv
import functools
import hashlib
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile

import numpy as np
import pytest
from PIL import Image

from cifar10 import evaluate, train
from cifar10.base.errors import UsageError
from cifar10.base.registry import DATASETS
from cifar10.data import augment, datasets, own_images
from cifar10.data.images import loaded
from cifar10.data.photos import picture_files, prepared_photos
from cifar10.evaluation import of_checkpoints
from cifar10.run import metrics
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.tools.check import check
from cifar10.training import trainer
from cifar10.training.resolved import resolve
from cifar10.training.start import check_directory
from tests.crashes import read_tree
from tests.helpers import change_record, last_variables, mostly_stress, run_forked, tf
from tests.test_picture_files import encoded

PIXELS = np.random.default_rng(0).integers(0, 256, [32, 32, 3], np.uint8)


def file_of(i):
    """Returns the content of picture file i; each number gives a different picture."""
    return encoded(PIXELS + np.uint8(i % 256), ('PNG', 'JPEG', 'GIF', 'WEBP')[i % 4])


@pytest.fixture
def folder(tmp_path):
    """A function that makes a folder with a picture at each of the given paths."""
    def make(*paths):
        for i, path in enumerate(paths):
            (tmp_path / 'mine' / path).parent.mkdir(parents=True, exist_ok=True)
            content = b'x' if path.endswith('.txt') else file_of(i)
            (tmp_path / 'mine' / path).write_bytes(content)
        return str(tmp_path / 'mine') + '/'
    return make


def data_of(path):
    """Returns the data_dir beside a folder of images."""
    return os.path.join(os.path.dirname(path.rstrip('/')), 'data')


def prepare(path, part=datasets.TRAIN, test_fraction=None, image_size=32):
    return datasets.prepare(path, data_of(path), part, test_fraction, image_size)


def numbered(*folders, n=10):
    return [f'{folder}/{i}.png' for folder in folders for i in range(n)]


def labels(data):
    return [int(label) for path in data.files for label in np.fromfile(path, np.uint8).reshape(-1, 3073)[:, 0]]


def test_folders_of_classes_become_records(folder, capsys):
    path = folder(*numbered('train/owl', 'train/eel', 'train/ant'), *numbered('test/ant', 'test/owl', 'test/eel', n=2),
                  'train/owl/notes.txt', 'train/.hidden/x', 'train/owl/.DS_Store')
    pictures = read_tree(path)
    train, test = (prepare(path, part) for part in (datasets.TRAIN, datasets.TEST))
    assert read_tree(path) == pictures and train.folder.startswith(f'{data_of(path)}/mine-32px/')
    assert train.classes == ('ant', 'eel', 'owl') and (train.count, test.count) == (30, 6)
    assert sorted(labels(train)) == sorted([0, 1, 2] * 10) and labels(train) != sorted(labels(train))
    output = capsys.readouterr().out
    assert output.count('converting') == 1 and 'also training images' not in output
    assert re.search(rf'warning: left out 1 of 37 .*pictures: {path}train/owl/notes.txt \(', output)
    assert f'; {train.folder}/left-out.txt lists ' in output
    prepare(path)  # a second start
    assert capsys.readouterr().out == ''


@pytest.mark.parametrize('size', [32, 72])
def test_prepared_images_are_found_by_names_sizes_and_times(folder, tmp_path, size, capsys):
    path = folder(*numbered('ant', 'bee'))
    before, here = read_tree(path), functools.partial(prepare, test_fraction=0.3, image_size=size)
    data = here(path)
    assert read_tree(path) == before and data.folder.startswith(f'{tmp_path}/data/mine-{size}px/')
    moved = shutil.copytree(path, tmp_path / 'elsewhere' / 'mine')  # keeps times to whole seconds
    for file in moved.rglob('*.png'):
        os.utime(file, (0, int(file.stat().st_mtime)))
    capsys.readouterr()
    found = datasets.prepare(f'{moved}/', data_of(path), image_size=size, test_fraction=0.3)
    assert (found.folder, capsys.readouterr().out) == (data.folder, '')
    changed = found.name_of(0)
    time = os.stat(changed).st_mtime
    os.utime(changed, (0, 0))  # changed in place, at the same size
    other = datasets.prepare(f'{moved}/', data_of(path), image_size=size, test_fraction=0.3)
    assert os.path.dirname(other.folder) == os.path.dirname(data.folder) and other.folder != data.folder
    assert other.digest == data.digest and ' 20 images of 2 classes' in capsys.readouterr().out
    os.utime(changed, (0, time))
    os.remove(path + 'ant/3.png')
    assert here(path).count == 13  # another folder of the same name
    assert datasets.prepare(f'{moved}/', data_of(path), image_size=size, test_fraction=0.3).folder == data.folder


class AsStored(augment.Augmentation):
    """Feeds the stored pixels."""

    def normalise(self, pixels):
        return pixels


@pytest.mark.parametrize('size', [32, 72])
@pytest.mark.parametrize('paths', [numbered('ant', 'bee'), numbered('train/ant', 'train/bee', 'test/ant', 'test/bee')])
def test_each_example_has_the_name_of_its_file(folder, size, paths):
    path = folder(*paths, 'ant/no\npicture.txt')
    if 'ant/0.png' in paths:
        os.rename(path + 'ant/5.png', path + os.fsdecode(b'ant/\xff 5.png'))
    found = []
    for part in (datasets.TRAIN, datasets.TEST):
        data = prepare(path, part, 0.3, size)
        names = [data.name_of(i) for i in range(data.count)]
        with tf.Graph().as_default(), tf.Session() as session:
            images = loaded(data)
            session.run(images.read)
            pixels, labels = session.run(images.batch(AsStored(), tf.range(data.count, dtype=tf.int64), None))
        for name, label, image in zip(names, labels, pixels, strict=True):
            assert name.split('/')[-2] == data.classes[label]
            if size == 32 and pathlib.Path(name).read_bytes()[:4] == b'\x89PNG':
                np.testing.assert_array_equal(image, np.asarray(Image.open(name)))
        found += names
    pictures = [str(file) for file in pathlib.Path(path).rglob('*') if file.is_file() and 'txt' not in file.name]
    assert sorted(found) == sorted(pictures)


def test_one_command_lists_doubtful_pictures_of_both_parts_by_class(tmp_path, capsys):
    labels, wrong = np.arange(96) % 3, {7: 2, 10: 0, 13: 2, 80: 0, 90: 1}  # image -> its wrong class
    for i, label in enumerate(labels):
        pixels = np.random.default_rng(i).integers(0, 120, [40, 40, 3])
        pixels[..., 2 - label] += 100
        part, name = 'test' if i >= 72 else 'train', ('blue', 'green', 'red')[wrong.get(i, label)]
        (tmp_path / 'mine' / part / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / 'mine' / part / name / f'{i}.png')
    for name in ('blue', 'green', 'red'):  # fits no class; the model assigns one of the three to its folder
        Image.new('RGB', (40, 40), (95, 95, 95)).save(tmp_path / 'mine' / 'test' / name / 'grey.png')
    (tmp_path / 'mine' / 'train' / 'red' / 'corrupt.jpg').write_bytes(encoded(PIXELS, 'JPEG')[:300])
    mine = os.path.relpath(tmp_path / 'mine')  # the printed command works in any working directory
    train(dataset=mine, data_dir=str(tmp_path / 'data'), train_dir=str(tmp_path / 'a run'), network='linear',
          batch_size=8, max_steps=40, tower_device='cpu', summary_steps=0, say=print)
    *_, line = capsys.readouterr().out.splitlines()
    command, _, _ = line.removeprefix('next').partition(' lists ')
    result = run_forked([sys.executable, *shlex.split(command)[1:], '--tower_device=cpu'])
    assert (result.returncode, result.stderr) == (0, '')
    head, *lines = result.stdout[result.stdout.index('may be in the wrong folder'):].splitlines()[:9]
    assert head.endswith(f' in {tmp_path}/mine')
    of_class = [each.split()[1] for each in lines]
    assert of_class == sorted(of_class)
    found = {(name, predicted, pathlib.Path(file).stem) for _, name, predicted, file in map(str.split, lines)}
    names = 'blue', 'green', 'red'
    grey, = {predicted for _, predicted, stem in found if stem == 'grey'}
    assert found == {(names[given], names[i % 3], str(i)) for i, given in wrong.items()} | {
        (name, grey, 'grey') for name in names}
    with open(tmp_path / 'a run-40.csv', newline='') as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 100 and all(row['true_class'] == pathlib.Path(row['file']).parent.name for row in rows)
    assert [row['class'] for row in rows if row['file'].endswith('corrupt.jpg')] == ['']


def test_a_run_keeps_its_images_while_a_new_run_uses_the_current_ones(folder, tmp_path, capsys):
    path = folder(*numbered('ant', 'bee'))
    flags = dict(data_dir=data_of(path), network='linear', batch_size=4, tower_device='cpu', summary_steps=0)
    run = dict(flags, train_dir=str(tmp_path / 'run'))
    train(dataset=path, max_steps=1, say=print, **run)
    output = capsys.readouterr().out
    *_, line = output.splitlines()
    given = f'--train_dir={tmp_path}/run --image={path[:-1]} --csv={tmp_path}/run-1.csv'
    assert line.startswith('next  ') and given in line
    (tmp_path / 'mine' / 'ant' / 'new.png').write_bytes(file_of(77))
    with pytest.raises(UsageError, match='^--eval_dir=.* is in the folder of the images'):
        evaluate(train_dir=run['train_dir'], eval_dir=path + 'eval')
    assert sorted(os.listdir(path)) == ['ant', 'bee']
    said = f'{path[:-1]}: files were added, removed or changed since the run began; this run keeps using its images in '
    result = train(train_dir=run['train_dir'], max_steps=2, say=print)
    output = capsys.readouterr().out
    assert f'changed    {said}{data_of(path)}/mine-32px/' in output and ', 18 images of 32x32 in' in output
    assert output.count(said) == 1 and said in result.notes[0] and result.step == 2
    for data in ('test', 'train_eval'):
        result = evaluate(train_dir=run['train_dir'], eval_data=data)
        assert result.examples == dict(test=2, train_eval=18)[data] and said in result.notes[0]
    train(dataset=path, max_steps=1, say=print, **dict(flags, train_dir=str(tmp_path / 'other')))
    output = capsys.readouterr().out
    assert ', 19 images of 32x32 in' in output and said not in output


def test_misplaced_training_pictures_have_the_largest_losses(tmp_path, capsys):
    names = 'blue', 'red'
    for part, labels, wrong in (('train', np.arange(40) % 2, [4, 5]), ('test', np.arange(8) % 2, [])):
        images = np.random.default_rng(len(labels)).integers(0, 120, [len(labels), 40, 40, 3])
        images[np.arange(len(labels)), :, :, 2 - 2 * labels] += 100
        labels[wrong] = 1 - labels[wrong]
        for i, image in enumerate(images):
            path = tmp_path / 'mine' / part / names[labels[i]] / f'{i}.png'
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.astype(np.uint8)).save(path)
    run = str(tmp_path / 'run')
    train(dataset=f'{tmp_path}/mine/', data_dir=str(tmp_path / 'data'), train_dir=run, image_size=72, network='linear',
          augmentation='classic', batch_size=8, max_steps=20, tower_device='cpu', summary_steps=0)
    result = evaluate(train_dir=run, tower_device='cpu', say=print)
    assert result.accuracy == 1 and 'the largest losses' not in capsys.readouterr().out
    found = evaluate(train_dir=run, eval_data='train_eval', tower_device='cpu', say=print).largest_losses
    assert sorted((each['image'], each['class'], each['predicted']) for each in found[:2]) == sorted([
        (f'{tmp_path}/mine/train/red/4.png', 'red', 'blue'), (f'{tmp_path}/mine/train/blue/5.png', 'blue', 'red')])
    probabilities = [each['probability'] for each in found]
    assert probabilities == sorted(probabilities) and probabilities[1] < 0.5 < probabilities[2] and len(found) == 16
    assert 'the predicted class, the image' in capsys.readouterr().out
    tested, trained = metrics.read(run + '/eval', metrics.EVAL)
    assert tested['largest_losses'] == result.largest_losses and trained['largest_losses'] == found
    values = [{value.tag: value for event in tf.train.summary_iterator(str(file)) for value in event.summary.value}
              for file in sorted(pathlib.Path(run, 'eval').glob('*tfevents*'))]
    # Training and test images have separate curves.
    tested, trained = ({tag for tag in tags if not tag.startswith('_')} for tags in values)
    assert tested == {tag.removeprefix('train_eval/') for tag in trained} and not tested & trained
    table = values[1]['train_eval/largest_losses'].tensor.string_val[0].decode().replace('\\', '')
    assert [row.split(' | ')[1] for row in table.splitlines()[2:]] == [each['image'] for each in found]


@pytest.mark.parametrize('size', [32, 72])
def test_images_shared_by_parts_or_classes_are_counted_and_named(folder, size, capsys):
    path = folder(*numbered('train/owl', 'train/eel', 'test/owl', 'test/eel'))
    prepare(path, image_size=size)
    assert ' equal ' not in (output := capsys.readouterr().out) and 'also' not in output
    for name in ('owl', 'eel'):
        shutil.copy(f'{path}train/{name}/1.png', f'{path}test/{name}/other.png')
    prepare(path, image_size=size)
    said = re.findall('warning: (.*)', capsys.readouterr().out)
    pairs = [f'{path}test/{name}/other.png = {path}train/{name}/1.png' for name in ('owl', 'eel')]
    start = '2 test images are also training images: '
    assert said in ([start + ', '.join(pairs)], [start + ', '.join(pairs[::-1])])
    for i in range(2, 6):  # in another format
        Image.open(f'{path}train/owl/{i}.png').convert('RGB').save(f'{path}train/eel/as{i}.webp', lossless=True)
    shutil.rmtree(path + 'test/owl')
    shutil.copytree(path + 'train/owl', path + 'test/owl')
    prepare(path, image_size=size)
    said = dict(line.split(': ', 1) for line in re.findall('warning: (.*)', capsys.readouterr().out))
    assert said.keys() == {'11 test images are also training images', '4 images are in two classes'}
    of_classes = said['4 images are in two classes'].removesuffix(' ...').split(', ')
    for pair in of_classes:
        assert {file.split('/')[-2] for file in pair.split(' = ')} == {'owl', 'eel'}
        one, other = (np.asarray(Image.open(file).convert('RGB')) for file in pair.split(' = '))
        assert (one == other).all()


@pytest.mark.parametrize('size', [32, 72])
def test_a_new_decoder_prepares_again_but_a_run_keeps_its_images(folder, size, monkeypatch, capsys):
    path = folder(*numbered('ant', 'bee'))
    before = prepare(path, test_fraction=0.3, image_size=size)
    written = read_tree(data_of(path))
    for module in (own_images, prepared_photos):
        monkeypatch.setattr(module, 'DECODER', 'pillow99_libjpeg9')
    capsys.readouterr()
    settings = train_settings(dataset=path, data_dir=data_of(path), test_fraction=0.3, image_size=size, network='fast')
    kept = datasets.find(settings.data, os.path.basename(before.folder)).images()
    said = capsys.readouterr().out
    assert 'pillow99' in said and picture_files.DECODER in said and before.folder in said
    assert kept.folder == before.folder and read_tree(data_of(path)) == written
    new = prepare(path, test_fraction=0.3, image_size=size)
    assert new.folder != before.folder and 'pillow99' in new.folder and picture_files.DECODER in before.folder
    now = read_tree(data_of(path))
    assert written.items() <= now.items() and (size == 32 or len(now) >= len(written) + 20)


@pytest.mark.parametrize('size', [32, 72])
def test_entries_that_are_not_files_are_left_out_of_all_counts(folder, size, capsys):
    path = folder(*numbered('ant', 'bee'), *(f'ant/more{i}/1.png' for i in range(20)), 'ant/notes.txt')
    os.mkfifo(path + 'bee/pipe')
    os.symlink('more1', path + 'ant/link')
    _, labels = DATASETS.load(path).configured(0.3, size).expected()
    counts = {part: len(each) for part, each in labels.items()}
    assert counts == {datasets.TRAIN: 15, datasets.TEST: 6}  # includes the text file, which has not been read yet
    data = prepare(path, test_fraction=0.3, image_size=size)
    output = capsys.readouterr().out
    assert data.count == 14 and ' 21 images of 2 classes' in output and 'warning: left out 23 of 43 files' in output
    assert f'{path}ant/more0 (a subfolder, ' in output


def test_a_class_with_only_subfolders_has_no_images(folder):
    path = folder(*(f'{name}/more{i}/1.png' for name in ('ant', 'bee') for i in range(9)))
    with pytest.raises(UsageError, match='class ant has no training image .*subfolder'):
        DATASETS.load(path).configured(0.3, 32).expected()


@pytest.mark.parametrize('name', ['', 'bee'])
def test_an_unreadable_folder_is_refused_with_a_remedy(name):
    with tempfile.TemporaryDirectory() as path:  # pytest's folders are closed to other users
        os.chmod(path, 0o755)
        for each in ('ant', 'bee'):
            os.mkdir(os.path.join(path, each))
        closed = os.path.join(path, name).rstrip('/')
        os.chmod(closed, 0o311)
        config = train_settings(dataset=f'{path}/', data_dir=data_of(path)).data
        try:
            if os.getuid() == 0:
                os.seteuid(2 ** 16 - 2)  # root can read everything
            with pytest.raises(UsageError, match=f'^{closed}: Permission denied; make the folder readable, or rem'):
                datasets.find(config)
        finally:
            os.seteuid(os.getuid())
            os.chmod(closed, 0o755)


@pytest.mark.parametrize('fraction, tested', [(0.28, 3), (0.01, 1)])
def test_the_held_out_fraction_is_rounded(folder, fraction, tested):
    path = folder(*numbered('ant', 'bee'))
    train, test = (prepare(path, part, fraction) for part in (datasets.TRAIN, datasets.TEST))
    assert sorted(labels(test)) == [0] * tested + [1] * tested
    assert sorted(labels(train)) == [0] * (10 - tested) + [1] * (10 - tested)


@pytest.mark.parametrize('paths, part', [
    (['train/a/1.png', 'val/a/1.png'], 'has train/ but no test/; .*val/.* --dataset=.*/mine/train '),
    (numbered('train', 'test', 'car'), 'no class directories; .*train or test'),
    (numbered('train/a', 'train/b\nc', 'test/a', 'test/b'), r"directory 'b\\nc' in .*/train has a line break in its"),
    (numbered('a', '\u3000b'), 'leading or trailing space'),
    (['train/a/1.png', 'train/b/1.png', 'test/a/1.png'], 'only train/ has b; .*same classes'),
    (['a/1.png'], 'one class, a;'),
    (numbered('photos/a', 'photos/b'), 'one class, photos; .*, use --dataset=.*/photos/$'),
    (numbered('a', 'b', n=2), 'has 2 training images; give at least 5'),
    (numbered('a', 'b') + ['c/1.png'],
     'class c has no training image; .* for testing.* remove its folder'),
    ([f'{i}/1.png' for i in range(257)],
     'has 257 classes; use 256 or fewer, or an --image_size above 64'),
])
def test_errors_name_the_problem_of_a_folder(folder, paths, part, tmp_path, capsys):
    path = folder(*paths)
    with pytest.raises(UsageError, match=part):
        prepare(path, test_fraction=0.1)
    with pytest.raises(UsageError, match=part):
        datasets.find(train_settings(dataset=path, data_dir=data_of(path)).data).expected()  # as --check does
    assert not os.path.exists(data_of(path))
    assert 'converting' not in capsys.readouterr().out


def test_a_class_of_corrupt_files_is_refused(folder, capsys):
    path = folder(*numbered('a', 'b'), 'c/1.png', 'c/2.heic', 'c/3/4.png')
    pathlib.Path(path, 'c', '1.png').write_bytes(file_of(0)[:200])
    pathlib.Path(path, 'c', '2.heic').write_bytes(b'\0\0\0\x18ftypheic' + bytes(30))
    with pytest.raises(UsageError, match=f'class c has no training image .3 files or folders in it .* {path}c/1.png, a '
                       'corrupt .*subfolders'):
        prepare(path, test_fraction=0.1)
    assert 'left out' not in capsys.readouterr().out
    assert os.listdir(os.path.join(data_of(path), 'mine-32px')) == []


def test_unusual_class_names_work(folder, capsys):
    names = ['train', 'Test', 'a b', 'a\x1b[31m', 'naïve', '猫', '#1', os.fsdecode(b'\xff\xfe')]
    parts = [f'{part}/{name}' for part in ('train', 'test') for name in names]
    path = folder(*numbered(*parts, n=2), 'train/.hidden/1.png', 'train/a b/line\nend\udcff.txt')
    assert prepare(path, test_fraction=0.1).classes == tuple(sorted(names))
    assert f"pictures: '{path}train/a b/line\\nend\\udcff.txt' (not" in capsys.readouterr().out


def test_missing_images_of_a_run_are_reported(one_step, settings, tmp_path):
    folder = settings().run.train_dir
    change_record(folder, dataset=f'{tmp_path}/gone')
    where = f'--dataset={tmp_path}/gone does not exist;'
    for call in (lambda: trainer.train(resolve(dict(train_dir=folder))[0]),
                 lambda: check(resolve(dict(train_dir=folder))[0]),
                 lambda: of_checkpoints.evaluate(eval_settings(train_dir=folder, run_once=True))):
        with pytest.raises(UsageError, match=where):
            call()
    with pytest.raises(UsageError, match=f'^--dataset={tmp_path}/new does not exist'):
        of_checkpoints.evaluate(eval_settings(train_dir=folder, run_once=True, dataset=f'{tmp_path}/new/'))


@pytest.mark.parametrize('images, place', [
    (numbered('a', 'b'), '.'), (numbered('train/a', 'train/b', 'test/a', 'test/b'), 'train/run')])
def test_nothing_is_written_among_the_class_folders(folder, images, place):
    path = folder(*images)
    for name, other in (('train_dir', 'data_dir'), ('data_dir', 'train_dir')):
        with pytest.raises(UsageError, match=f'^--{name}=.* is in the folder of the images, .* outside'):
            trainer.train(train_settings(**{'dataset': path, name: path + place, other: data_of(path)},
                                         tower_device='cpu'))
    assert not os.path.exists(path + place) or place == '.'
    beside = path + 'run' if place == 'train/run' else path[:-1] + '-run'
    check_directory(train_settings(dataset=path, train_dir=beside))


@pytest.mark.parametrize('images, place, refused', [
    (numbered('a', 'b'), '', True), (numbered('a', 'b'), 'run', True), (numbered('a', 'b'), 'a', True),
    (numbered('a', 'b'), 'a/run', True), (numbered('train/a', 'train/b', 'test/a', 'test/b'), '', True),
    (numbered('train/a', 'train/b', 'test/a', 'test/b'), 'train', True),
    ([*numbered('a', 'b'), 'notes.txt'], 'run', False), (['disc.png', 'c/notes.txt', 'd/1.png'], 'run', False),
    (['train/notes.txt', 'notes.txt'], '', False)])
def test_a_run_of_other_data_does_not_start_among_pictures(folder, images, place, refused):
    path = folder(*images) + place
    config = train_settings(dataset='shapes', train_dir=path)
    if not refused:
        check_directory(config)
        return
    with pytest.raises(UsageError, match=f'^--train_dir={path.rstrip("/")} .* elsewhere$'):
        check_directory(config)
    check_directory(train_settings(dataset='shapes', train_dir=f'{data_of(folder())}/run'))


@pytest.mark.parametrize('make, name', [(train_settings, 'dataset'), (eval_settings, 'export_dir')])
def test_a_path_that_tensorflow_cannot_open_is_reported(make, name):
    with pytest.raises(UsageError, match=f'^--{name}=/x/\udcff/y is not valid UTF-8, which TensorFlow requires'):
        make(**{name: '/x/\udcff/y'})


def test_cifar100_has_the_classes_of_the_published_file():
    content = ''.join(name + '\n' for name in DATASETS.load('cifar100').classes).encode()  # fine_label_names.txt
    assert hashlib.sha256(content).hexdigest() == '4a53f81a8af29bb6aa646bfe2c455db1b061edfde82a39c0cfc313ef536c681b'


def test_cifar100_records_have_two_labels(settings, tmp_path):
    random, folder = np.random.default_rng(0), tmp_path / 'cifar-100-binary'
    folder.mkdir()
    rows = random.integers(0, 256, [40, 3074], np.uint8)
    rows[:, 0], rows[:, 1] = random.integers(0, 20, 40), random.integers(0, 100, 40)
    for name in ('train.bin', 'test.bin'):
        rows.tofile(folder / name)
    data = datasets.prepare('cifar100', str(tmp_path))
    assert (len(data.classes), data.count) == (100, 40)
    np.testing.assert_array_equal(data.images(40).transpose(0, 3, 1, 2).reshape(40, -1), rows[:, 2:])
    memory = loaded(data)
    with tf.Session() as session:
        session.run(memory.read)
        np.testing.assert_array_equal(session.run(memory.labels), rows[:, 1])
        np.testing.assert_array_equal(session.run(memory.pixels), data.images(40))
    config = settings(dataset='cifar100', data_dir=str(tmp_path), max_steps=1)
    trainer.train(config)
    assert last_variables(config.run.train_dir)['linear/weights'].shape[1] == 100
    rows[7, 1] = 100
    rows.tofile(folder / 'train.bin')
    with pytest.raises(UsageError, match='record 7 of .* has label 100'):
        datasets.prepare('cifar100', str(tmp_path))


def split_of(path, size, fraction):
    """Returns, for each part, the sorted names of its pictures below the folder."""
    parts = {part: prepare(path, part, fraction, size) for part in (datasets.TRAIN, datasets.TEST)}
    if size > 64:
        return {part: [os.path.relpath(data.name_of(i), path) for i in range(data.count)]
                for part, data in parts.items()}
    return {part: (labels(data), [pathlib.Path(file).read_bytes() for file in data.files])
            for part, data in parts.items()}


@pytest.mark.parametrize('size, fraction', mostly_stress(
    [(size, fraction) for size in (32, 72) for fraction in (0.01, 0.3, 0.6)], (32, 0.3), (72, 0.01)))
def test_a_file_that_is_no_picture_does_not_change_the_split(folder, tmp_path, size, fraction):
    path = folder(*numbered('ant', 'bee', 'eel', n=7))
    clean = split_of(path, size, fraction)
    for name in ('ant', 'bee', 'eel'):  # with this many files, some would be drawn for testing
        for i in range(9):
            (tmp_path / 'mine' / name / f'Thumbs{i}.db').write_bytes(b'x')
    assert split_of(path, size, fraction) == clean


def test_the_split_of_picture_folders_is_stable_across_versions(folder):
    # In the order of the digests of their paths, the first pictures of each class are for testing.
    path = folder(*numbered('ant', 'bee', n=9))
    found = split_of(path, 72, 0.3)
    for name in ('ant', 'bee'):
        ordered = sorted((f'{name}/{i}.png' for i in range(9)), key=lambda file: hashlib.sha256(file.encode()).digest())
        assert [file for file in found[datasets.TEST] if file.startswith(name)] == ordered[:3]
        assert [file for file in found[datasets.TRAIN] if file.startswith(name)] == ordered[3:]


@pytest.mark.parametrize('size', [32, 72])
def test_a_broken_link_is_left_out_and_listed(folder, tmp_path, size, capsys):
    path = folder(*numbered('ant', 'bee'))
    for link, target in (('ant/loop.png', 'loop.png'), ('ant/none.png', 'gone.png'), ('loop', 'loop')):
        os.symlink(target, path + link)
    assert prepare(path, test_fraction=0.1, image_size=size).count == 18
    listed = next((tmp_path / 'data').glob('*/*/left-out.txt')).read_text().splitlines()
    assert listed == [f'{path}ant/loop.png (Too many levels of symbolic links)',
                      f'{path}ant/none.png (No such file or directory)']
    capsys.readouterr()
    prepare(path, test_fraction=0.1, image_size=size)
    assert 'warning' not in capsys.readouterr().out  # no warning about links that were broken when the files were made
