"""Users' augmentations: their input, the use of their output, refusals and warnings."""
import functools
import io
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from PIL import Image

from cifar10 import evaluate, train
from cifar10.base.errors import UsageError
from cifar10.base.registry import AUGMENTATIONS
from cifar10.data import datasets
from cifar10.data.images import ImageSource
from cifar10.model.classifier import correct, cross_entropies
from cifar10.model.network_draws import at_position, uniform_like
from cifar10.run import metrics
from cifar10.run.pictures import captioned
from tests.helpers import ROOT, checkpoints, mostly_stress, rehearsed, variables

EXAMPLES = f'{ROOT}/examples/augmentations.py'
ALONE, TOGETHER = ('cutout', 'colour_jitter', 'rotation'), ('mixup', 'cutmix')
BUILT_IN = 'classic', 'shift', 'resized_crop', 'none'
_TOP = 'import numpy as np\nimport tensorflow.compat.v1 as tf\nfrom cifar10.model import uniform_like\n'


@pytest.fixture
def own(tmp_path):
    """A function that writes the body of an augmentation to a file and returns the flag's value."""
    def write(body, built_in='none', arguments='images, labels, num_classes'):
        lines = ''.join(f'    {line}\n' for line in body.split('\n'))
        (tmp_path / 'mine.py').write_text(f'{_TOP}def change({arguments}):\n{lines}')
        return f'{built_in},{tmp_path}/mine.py:change'
    return write


@pytest.fixture
def run(tmp_path, data_dir):
    """A function that trains a small run with given settings and returns its last variables."""
    def trained(name='run', **settings):
        directory = str(tmp_path / name)
        given = dict(dataset='shapes', data_dir=data_dir, train_dir=directory, network='linear', tower_device='cpu',
                     batch_size=8, max_steps=4, summary_steps=0, moving_averages=False)
        train(**{**given, **settings})
        return variables(checkpoints(directory)[-1])
    return trained


@functools.cache
def batch(built_in, data_dir, function=None):
    """Returns the first training batch of 8: raw pixels, labels, and the network's input."""
    name = f'{built_in},{EXAMPLES}:{function}' if function else built_in
    with tf.Graph().as_default(), tf.Session() as session:
        augmentation = AUGMENTATIONS.load(name)(None, 1000, 0, 32)
        source = ImageSource(datasets.prepare('shapes', data_dir), augmentation, 8, 0)
        (images, read), zero = source.load(), tf.zeros([], tf.int64)
        given, labels = source.batch(images, zero, zero)
        with at_position(0, zero):
            fed, classes = augmentation.in_tower(given, labels, 10)
        session.run(read)
        return session.run((given, labels, fed, classes))


@pytest.mark.parametrize('built_in', BUILT_IN)
def test_a_built_in_augmentation_cuts_before_it_and_normalises_after_it(built_in, data_dir):
    expected, labels, *_ = batch(built_in, data_dir)
    with tf.Graph().as_default(), tf.Session() as session:
        augmentation = AUGMENTATIONS.load(built_in)(None, 1000, 0, 32, then=lambda *given: given[:2])
        source = ImageSource(datasets.prepare('shapes', data_dir), augmentation, 8, 0)
        (images, read), zero = source.load(), tf.zeros([], tf.int64)
        pixels, same = source.batch(images, zero, zero)
        fed, _ = augmentation.in_tower(pixels, same, 10)
        session.run(read)
        pixels, same, fed = session.run((pixels, same, fed))
    np.testing.assert_array_equal(same, labels)
    np.testing.assert_allclose(fed, expected, atol=2e-5)
    if built_in != 'classic':  # classic changes the contrast
        assert pixels.min() >= 0 and 200 < pixels.max() <= 255


@pytest.mark.parametrize('function', [*ALONE, *TOGETHER])
def test_the_examples_work_as_described(function, data_dir):
    pixels, labels, fed, classes = batch('none', data_dir, function)
    _, _, plain, _ = batch('none', data_dir)
    changed = np.abs(fed - plain).max(-1) > 1e-4
    assert fed.shape == plain.shape and changed.any((1, 2)).sum() >= 7
    if function in ALONE:
        np.testing.assert_array_equal(classes, labels)
    else:
        np.testing.assert_allclose(classes.sum(1), 1, atol=1e-6)
        own, other = (classes[range(8), each] for each in (labels, labels[::-1]))
        assert ((own > 0) & (other > 0)).all() and len(set(own.round(3))) > 5
        np.testing.assert_allclose((own + other)[labels != labels[::-1]], 1, atol=1e-6)
    if function == 'mixup':
        share = np.where(labels != labels[::-1], own, 0)[:, None, None, None]
        mixed = (share * plain + (1 - share) * plain[::-1])[labels != labels[::-1]]
        np.testing.assert_allclose(fed[labels != labels[::-1]], mixed, atol=1e-4)
    if function == 'cutout':
        assert changed.sum((1, 2)).max() <= 16 ** 2 and changed.sum((1, 2)).max() > 100
    if function == 'cutmix':
        share = 1 - (np.abs(fed - plain[::-1]).max(-1) < 1e-4).mean((1, 2))
        assert (share <= np.where(labels == labels[::-1], 1, own) + 1e-6).all()  # some pixels of both images are equal


@pytest.mark.parametrize('function', mostly_stress(ALONE, 'cutout'))
def test_towers_take_the_steps_of_one_tower(function, run):
    name = f'shift,{EXAMPLES}:{function}'
    one = run('one', augmentation=name, batch_size=16)
    found = run('two', augmentation=name, num_gpus=2, variable_update='replicated')
    for variable, value in one.items():
        np.testing.assert_allclose(found[variable], value, atol=1e-6, err_msg=variable)


def test_soft_labels_are_trained_as_fractions_of_classes():
    logits = tf.constant(np.random.default_rng(0).standard_normal([4, 3], np.float32))
    labels = tf.constant([0, 2, 1, 1])
    soft = 0.9 * tf.one_hot(labels, 3) + 0.1 / 3
    with tf.Session() as session:
        for found, expected in (
                (cross_entropies(logits, tf.one_hot(labels, 3)), cross_entropies(logits, labels)),
                (cross_entropies(logits, soft), cross_entropies(logits, labels, 0.1)),
                (cross_entropies(logits, tf.one_hot(labels, 3), 0.1), cross_entropies(logits, labels, 0.1)),
                (correct(logits, soft), correct(logits, labels))):
            np.testing.assert_allclose(*session.run((found, expected)), rtol=1e-6)


@pytest.mark.stress
def test_users_losses_and_class_weights_accept_soft_labels(run, own, tmp_path):
    (tmp_path / 'loss.py').write_text(
        'import tensorflow.compat.v1 as tf\ndef loss(logits, labels):\n'
        '    return tf.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=logits)\n')
    soft = dict(augmentation=own('return images, tf.one_hot(labels, num_classes)'), class_weights='disc=3')
    hard = dict(augmentation='none', class_weights='disc=3')
    expected = run('hard', **hard)
    for name, changes in dict(soft=soft, own=dict(soft, loss=f'{tmp_path}/loss.py:loss')).items():
        found = run(name, **changes)
        for variable, value in expected.items():
            np.testing.assert_allclose(found[variable], value, atol=1e-5, err_msg=variable)


def test_its_draws_differ_from_the_networks_draws(data_dir):
    with tf.Graph().as_default(), tf.Session() as session:
        drawn = []
        with at_position(0, tf.zeros([], tf.int64)):
            drawn.append(uniform_like(tf.zeros([8, 1])))
        _, _, fed, classes = batch('none', data_dir, 'mixup')
        _, labels, *_ = batch('none', data_dir)
        network = session.run(drawn)[0][:, 0]
    share = classes[range(8), labels]
    assert np.abs(share - network)[labels != labels[::-1]].min() > 1e-4


def inputs_shown(train_dir):
    """Returns the pictures of inputs in a run's TensorBoard files: step -> uint8 [height, width, 3]."""
    events, = pathlib.Path(train_dir, 'train').iterdir()
    return {event.step: np.asarray(Image.open(io.BytesIO(value.tensor.string_val[2])))
            for event in tf.train.summary_iterator(str(events)) for value in event.summary.value
            if value.tag == 'images/inputs'}


def test_tensorboard_shows_the_networks_inputs_with_their_classes(run, own, tmp_path):
    run(augmentation=own('black, white = images[:, :, :16] * 0.0, images[:, :, 16:] * 0.0 + 255.0\n'
                         'return tf.concat([black, white], 2), labels * 0 + 2'), summary_steps=1, max_steps=2)
    images = np.zeros([8, 32, 32, 3])
    images[:, :, 16:] = 255
    (step, picture), = inputs_shown(tmp_path / 'run').items()
    assert step == 1  # once per start
    expected = captioned(images, [['triangle']] * 8)
    assert picture.shape == expected.shape
    assert np.abs(picture.astype(int) - expected).max() < 60  # inputs have the mean of each colour subtracted
    np.testing.assert_array_equal(picture[160:180], expected[160:180])
    run('mixed', augmentation=own('labels = labels * 0\n'
                                  'return images, 0.7 * tf.one_hot(labels + 2, 10) + 0.3 * tf.one_hot(labels, 10)'),
        summary_steps=1, max_steps=1)
    mixed = inputs_shown(tmp_path / 'mixed')[1]
    below = captioned(images, [['triangle 0.7', 'disc 0.3']] * 8)
    np.testing.assert_array_equal(mixed[160:200], below[160:200])
    assert mixed.shape == below.shape and (mixed != below).any()


@pytest.mark.parametrize('body, problem', [
    ('return images', 'it returns a tensor float32 (8, 32, 32, 3); return images, labels: float [n, 32, 32, 3] and'),
    ('return images[:4], labels', 'it returns a tensor float32 (4, 32, 32, 3) (line 5 of'),
    ('return images, tf.one_hot(labels, 7)', ', a tensor float32 (8, 7) (line 5 of'),
    ('return images + np.random.uniform(), labels', 'changes each time the file is executed; give random'),
    ('return images.no_such, labels', 'AttributeError')])
def test_an_invalid_augmentation_is_refused_with_its_line(body, problem, own, run):
    with pytest.raises(UsageError, match=re.escape(problem)):
        run(augmentation=own(body))


@pytest.mark.parametrize('name, problem', [
    ('shift,/no/such.py:f', 'there is no file /no/such.py'), ('shift,{}:none', 'has no function none'),
    ('shift,{}:f,mine.py:g', 'names several functions'),
    ('{}:mixup', r'did you mean none,{}:mixup\?'), ('blur,{}:mixup', 'is unknown; choose')])
def test_an_invalid_name_is_refused(name, problem, run):
    with pytest.raises(UsageError, match=problem.replace('{}', EXAMPLES)):
        run(augmentation=name.format(EXAMPLES))


@pytest.mark.parametrize('body, warning', [
    ('return images + tf.random.uniform(tf.shape(images)), labels',
     'line 5 of mine.py draws different random numbers after a resume'),
    ('return tf.reverse(images, [0]), labels', 'depends on how examples are divided'),
    ('return images, tf.reverse(labels, [0])', 'depends on how examples are divided'),
    ('return images + uniform_like(images[:, :1, :1, :1]), labels', None)])
def test_probable_mistakes_get_a_warning(body, warning, own):
    found = rehearsed('linear', augmentation=own(body), image_size=32)
    assert len(found) == (warning is not None) and (not warning or warning in found[0]), found


def test_evaluation_needs_no_augmentation_file_and_a_resume_accepts_a_moved_one(run, own, tmp_path):
    run(augmentation=own('return tf.reverse(images, [2]), labels', 'shift'), max_steps=2)
    directory = str(tmp_path / 'run')
    moved = tmp_path / 'elsewhere'
    moved.mkdir()
    shutil.move(tmp_path / 'mine.py', moved / 'mine.py')
    assert evaluate(checkpoint_dir=directory, eval_dir=str(tmp_path / 'eval'), num_examples=50).step == 2
    with pytest.raises(UsageError, match='there is no file'):
        train(train_dir=directory, max_steps=4)
    train(train_dir=directory, max_steps=4, augmentation=f'shift,{moved}/mine.py:change')
    start = metrics.last(directory, metrics.START)
    assert list(start['code_sha256']['augmentation']) == ['mine.py']
    with pytest.raises(UsageError, match='augmentation'):
        train(train_dir=directory, max_steps=5, augmentation='shift')
