"""Images of any size: resizing, augmentation, networks, and the checks of their combinations."""

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.data import augment, resize, shift
from cifar10.programs import flags
from cifar10.settings.training import GROUPS, train_settings
from cifar10.training.start import check_network
from tests.helpers import tf, value_of
from tests.test_picture_files import reader, weights_of


@pytest.mark.parametrize('size', [27, 48])
def test_records_and_files_are_resized_alike_with_anti_aliasing(size, tmp_path):
    images = np.random.default_rng(0).integers(0, 256, [2, 32, 32, 3], np.uint8)
    pixels, content = value_of([resize.cut_to_size(tf.constant(images), None, size), tf.io.encode_png(images[1])])
    weights = weights_of(32, size)
    np.testing.assert_allclose(pixels, np.einsum('ij,njkc,lk->nilc', weights, images, weights), atol=0.501)
    (tmp_path / 'x.png').write_bytes(content)
    image = reader(size, None, 32)(str(tmp_path / 'x.png'))
    np.testing.assert_array_equal(image, pixels[1])


@pytest.mark.parametrize('size, crop', [(17, 12), (64, 48)])
def test_classic_crops_three_quarters(size, crop):
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, [6, size, size, 3], np.uint8)
    numbers = np.float32(random.random([6, 4]))
    numbers[:4, :3] = [[0, 0, 0], [0, 0, 0.9], [0.999, 0.999, 0], [0.999, 0.999, 0.9]]  # the corners
    numbers[:, 3] = 0.5  # no change of contrast
    images, evaluated = value_of([augment.augment(tf.constant(pixels), numbers),
                                  augment.Classic(None, None, 0, size)(tf.constant(pixels))])
    for image, original, (row, column, mirror, _) in zip(images, pixels, numbers):
        top, left = int(row * (size - crop + 1)), int(column * (size - crop + 1))
        expected = original[top:top + crop, left:left + crop]
        np.testing.assert_allclose(image, expected[:, ::-1] if mirror < 0.5 else expected, atol=1e-3)
    first = (size - crop) // 2
    centre = pixels[:, first:first + crop, first:first + crop].astype(np.float32)
    np.testing.assert_allclose(evaluated, value_of(tf.image.per_image_standardization(centre)), atol=2e-5)


def test_shift_uses_the_size_of_the_data_or_smaller_sizes():
    assert shift.Shift(None, None, 0, 48).image_sizes() == [48]
    pixels = np.random.default_rng(0).integers(0, 256, [2, 64, 64, 3], np.uint8)
    images = value_of(shift.Shift([(0.0, 32)], None, 0, 64)(tf.constant(pixels)))
    expected = pixels.reshape(2, 32, 2, 32, 2, 3).mean((2, 4))
    np.testing.assert_allclose(images, (expected - (125.3, 123.0, 113.9)) / (63.0, 62.1, 66.7), atol=1e-4)


@pytest.mark.parametrize('size, sizes', [(32, '20:0.5,28'), (64, '40:0.5,56'), (17, '12:0.5,14'), (512, '320:0.5,448')])
def test_sizes_of_a_preset_scale_with_the_images_but_given_sizes_stay(size, sizes):
    assert train_settings(preset='fast', image_size=size).recipe.sizes == sizes
    assert train_settings(preset='fast', image_size=size, sizes='12:0.5,16').recipe.sizes == '12:0.5,16'


@pytest.mark.parametrize('given', [
    dict(dataset='photos/', image_size=128), dict(image_size=64), dict(augmentation='shift'),
    dict(augmentation='resized_crop', image_size=48), dict(image_size=16),
    dict(preset='photos', image_size=16)], ids=str)
def test_remedies_for_an_unsupported_image_size_work_and_the_first_keeps_given_flags(given):
    with pytest.raises(UsageError) as refused:
        check_network(train_settings(**given))
    texts = str(refused.value).split('; use ')[1].split(' or ')
    remedies = [flags.parse(GROUPS, '.', text.split()) for text in texts]
    for remedy in remedies:
        check_network(train_settings(**{**given, **remedy}))
    assert not remedies[0].keys() & given.keys()


FIXED = '''
import tensorflow.compat.v1 as tf
def network(images, num_classes, training):
    x = tf.reshape(images, {shape})
    return x @ tf.get_variable('weights', [24 * 24 * 3, num_classes])
'''


@pytest.mark.parametrize('shape, size, parts', [
    ('[-1, 24 * 24 * 3]', 40, ['ValueError: Dimension size must be evenly divisible by 1728 but is 21600 (line 4 of ',
                               '; its images have 30x30 pixels: ', ' or change --image_size']),
    ('[images.shape[0] or -1, images.shape[1] * images.shape[2] * 3]', 64, [
        'ValueError: Dimensions must be equal, but are 6912 and 1728 (line 5 of ', '; its images have 48x48 pixels: ']),
    ('[-1, 24 * 24 * 3]', 64, [
        'it returns 32 rows for 8 images (line 5 of ', 'in a tf.reshape', 'its images have 48x48 pixels'])])
def test_an_error_of_a_users_network_for_another_size_names_its_input(call, own, shape, size, parts):
    status, error = call('multi_gpu_train.py', f'--network={own(FIXED.format(shape=shape))}', f'--image_size={size}',
                         '--batch_size=8', '--tower_device=cpu')
    assert status == 2 and all(part in error for part in parts), error
    assert len(error.strip().splitlines()) == 1 and 'node' not in error
