"""Selects the images to evaluate a model on: from the run's data set or a different one."""
import contextlib
import dataclasses
import os

from cifar10.base.console import say
from cifar10.base.errors import UsageError, listed
from cifar10.base.registry import DATASETS
from cifar10.data import datasets
from cifar10.data.datasets import ARRAYS, ImageFiles
from cifar10.evaluation.trained import look_at
from cifar10.run.record import RunRecord
from cifar10.settings.evaluation import EvalSettings

_OWN_IMAGES = 'evaluate it on the images that it was trained with'  # the remedy in messages


def evaluated_images(record: RunRecord, settings: EvalSettings) -> tuple[ImageFiles, bool]:
    """Returns (the images to evaluate a run on, whether they are the run's own)."""
    data = record.settings.replace(data_dir=settings.data_dir or record.settings.data.data_dir).data
    own = _find_own(record, settings, data)
    images = _own_images(record, settings, own) if own else _other_images(record, settings, data)
    if settings.num_examples and settings.num_examples > images.count:
        raise UsageError(f'--num_examples={settings.num_examples}, but there are {images.count} {settings.eval_data} '
                         'images; leave it out to use all')
    say('data', str(images) + ('' if own else "; they are not the run's, so the result is only printed"))
    return images, bool(own)


def _find_own(record, settings, data):
    """Returns the Found of the run's own images; None if the settings name another data set."""
    if settings.dataset in (None, data.dataset):
        is_named = DATASETS.is_own(data.dataset) or settings.data_dir
        if record.run_id and not is_named and not os.path.isdir(data.data_dir):
            say('not here', f"the run's --data_dir={data.data_dir}, so the data set will be made there; if it was "
                            'moved, give its new --data_dir')
        return datasets.find(data, record.images_folder)
    if DATASETS.is_own(settings.dataset) and DATASETS.is_own(data.dataset):
        with contextlib.suppress(UsageError):  # the run's division may not fit them
            own = dataclasses.replace(data, dataset=settings.dataset)
            found = datasets.find(own)
            if found.has_files_of(record.images_folder):
                return datasets.find(own, record.images_folder)
            # Copies may have new times, so compare pixels. The run may have skipped files that are not pictures.
            classes, labels = found.dataset.expected()
            if classes == record.classes and len(labels[datasets.TRAIN]) >= record.examples and (
                    found.images(datasets.TRAIN).digest == record.images_sha256):
                return found
    return None


def _own_images(record, settings, found):
    datasets.refuse_among_images(settings.eval_dir, '--eval_dir', found.name)
    given = look_at(settings).given
    part = datasets.TEST if settings.eval_data == 'test' else datasets.TRAIN
    images = found.images(part)
    if record.classes:
        record.refuse_another(dict(classes=images.classes), given, _OWN_IMAGES)
    if DATASETS.is_own(found.name) and record.examples is not None:
        # The run may have trained on images that are test images now.
        before = images if part == datasets.TRAIN else found.images(datasets.TRAIN)
        record.refuse_another(dict(examples=before.count), given, _OWN_IMAGES)
        if record.difference_to(dict(images_sha256=before.digest)):
            say('warning', 'the training images have changed since the run was trained, so the run may have '
                           'been trained on test images')
        if part == datasets.TEST:
            if record.difference_to(dict(test_sha256=images.digest)):
                say('warning', 'the test images have changed since the run was trained')
            datasets.warn_of_equal(before, images)
    return images


def _other_images(record, settings, data):
    name = settings.dataset
    if settings.eval_data != 'test':
        raise UsageError(f"--eval_data={settings.eval_data} is for the run's own images, but --dataset={name} is "
                         'another data set; leave one of them out')
    found = datasets.find_other(data, name)
    classes = found.dataset.classes or found.dataset.expected()[0]
    # Classes in arrays have numbers instead of names.
    known = [str(label) for label in range(len(record.classes))] if name.endswith(ARRAYS) else list(record.classes)
    if unknown := [each for each in classes if each not in known]:
        raise UsageError(f'--dataset={name} has classes that the run does not have: {listed(unknown)}; leave out '
                         f"--dataset or these classes, or give them the run's names: {listed(known)}")
    images = found.images(datasets.TEST)
    images = dataclasses.replace(images, classes=tuple(record.classes[known.index(each)] for each in classes))
    with contextlib.suppress(UsageError):  # the run's own images may be on another machine
        own = datasets.find(data, record.images_folder)
        if os.path.isdir(own.folder):
            datasets.warn_of_equal(own._replace(line=None).images(datasets.TRAIN), images)
    return images
