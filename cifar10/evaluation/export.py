"""Exports a trained model as a SavedModel, for TensorFlow 2 programs and TensorFlow Serving."""
import dataclasses
import os
import shutil
from collections.abc import Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.console import say
from cifar10.base.directories import check_dir, make_dir
from cifar10.base.errors import UsageError
from cifar10.base.files import making, new_folder, remove_leftovers
from cifar10.base.graphs import place_of, seeded_graph
from cifar10.evaluation.classification import Classifier
from cifar10.evaluation.trained import Model
from cifar10.settings.evaluation import EvalSettings

_MOST = 8  # images at a time, for networks with a fixed number: each request computes as many


@dataclasses.dataclass(frozen=True)
class ExportResult:
    """The result of an export.

    Attributes:
      step: the step of the checkpoint.
      checkpoint: its prefix.
      path: the absolute path of the SavedModel.
      notes: warnings.
    """
    step: int
    checkpoint: str
    path: str
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)


def export(settings: EvalSettings) -> ExportResult:
    """Writes a SavedModel of the newest checkpoint to `settings.export_dir`, atomically.

    Its default signature takes `images`, uint8 [n, S, S, 3] with the `image_size` S of the run; `classify_bytes` takes
    `image_bytes`, string [n], the contents of picture files. Both return `probabilities`, float32 [n, classes],
    `class_index`, int64 [n], `class_name`, string [n], and `classes`, string [n, classes], the names of all classes. If
    the probabilities of an image are NaN, its index is -1 and its name is empty.
    """
    target = os.path.abspath(settings.export_dir)
    check_dir(target, '--export_dir')
    if _is_used(target):
        remove_leftovers(target)
        raise _used(settings)
    model = Model.open(settings)
    make_dir(os.path.dirname(target), '--export_dir')
    most = None if _takes_any_number(model.recipe) else _MOST
    if most:
        say('warning', f'the network needs to know the number of images, so the exported model takes {most} at most')

    def build():
        classifier = Classifier(model, model.devices.tower_devices[0], most)
        _refuse_python(settings)
        return _signatures(classifier, model.classes)

    with model.session(build) as opened:
        found = model.newest()
        opened.restore(found)
        with making(target), new_folder(target) as temporary:
            if _is_used(target):  # a concurrent export created it
                raise _used(settings)
            builder = tf.saved_model.Builder(temporary)
            builder.add_meta_graph_and_variables(
                opened.session, [tf.saved_model.tag_constants.SERVING], clear_devices=True, strip_default_attrs=True,
                signature_def_map=opened.built, main_op=tf.tables_initializer())
            builder.save()
            left = os.path.join(temporary, 'variables', 'variables_temp')
            if os.path.exists(left):  # TensorFlow does not say that it could not remove it
                shutil.rmtree(left)
    say('exported', f'{found.prefix}, step {found.step}, to {target}')
    return ExportResult(found.step, found.prefix, target)


def _takes_any_number(recipe):
    """Returns whether a network can be built for an unknown number of images."""
    size = recipe.image_size
    with seeded_graph():
        try:
            recipe.inference(recipe.augmentation(tf.placeholder(tf.uint8, [None, size, size, 3])))
        except UsageError:
            return False
    return True


def _is_used(target):
    is_empty_folder = os.path.isdir(target) and not os.listdir(target)
    return os.path.exists(target) and not is_empty_folder


def _used(settings):
    return UsageError(f'--export_dir={settings.export_dir} exists and is not empty; use a new directory')


def _refuse_python(settings):
    definition = tf.get_default_graph().as_graph_def()
    for node in [*definition.node, *(node for each in definition.library.function for node in each.node_def)]:
        if node.op in ('PyFunc', 'PyFuncStateless', 'EagerPyFunc'):
            raise UsageError(f'--export_dir={settings.export_dir}: the operation {node.name} of the network calls a '
                             f'Python function{place_of(node.name)}, which an exported model does not have; write it '
                             'with TensorFlow operations')


def _signatures(classifier: Classifier, classes: Sequence[str]) -> dict[str, Any]:
    """Returns the signatures of the SavedModel; builds their outputs for the classes."""
    with tf.device('/cpu:0'):
        is_finite = tf.reduce_all(tf.is_finite(classifier.probabilities), 1)
        highest = tf.argmax(classifier.probabilities, 1)
        index = tf.where_v2(is_finite, highest, tf.constant(-1, tf.int64), name='class_index')
        names = tf.constant([name.encode('utf-8', 'surrogateescape') for name in classes])
        outputs = {
            'probabilities': classifier.probabilities, 'class_index': index,
            'class_name': tf.gather(tf.concat([[''], names], 0), index + 1, name='class_name'),
            'classes': tf.tile(names[None], [tf.size(index), 1], name='classes')}
    inputs = {tf.saved_model.signature_constants.DEFAULT_SERVING_SIGNATURE_DEF_KEY: {'images': classifier.images},
              'classify_bytes': {'image_bytes': classifier.files}}
    return {name: tf.saved_model.predict_signature_def(taken, outputs) for name, taken in inputs.items()}
