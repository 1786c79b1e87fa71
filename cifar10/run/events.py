"""Writes TensorBoard's event files for runs and evaluations."""
import contextlib
import io
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image
from tensorboard.plugins.hparams.summary import session_start_pb

from cifar10.base import files
from cifar10.base.errors import RunError, describe_os_error, reason
from cifar10.run import pictures
from cifar10.run.folder import EVENTS_SUFFIX, glance
from cifar10.run.reporter import Reporter, due

# The main curves. An evaluation also has the first two, so TensorBoard overlays the curves of training and testing.
# Other tags are in groups, and TensorBoard opens the first two groups by name.
SHOWN = 'accuracy', 'cross_entropy', 'loss'
DETAILS, IMAGES, LAYERS = 'details/', 'images/', 'variables/'
LOSSES = 'losses/'  # prefix of the names of single losses
_LARGEST_NODE = 1000  # bytes of a constant in a graph, with its value
_SECONDS = re.compile(r'events\.out\.tfevents\.(\d+)')  # in the name of an event file


class Events:
    """An event file in a directory, for TensorBoard. Creates the directory, but not its parents.

    Every method except `close` raises a RunError if a write fails.

    Args:
      group: prefix of the tags of an evaluation's figures, tables and pictures.
    """

    def __init__(self, directory: str, group: str = ''):
        self.group = group
        # A `tf.summary.FileWriter` writes in a thread, and errors there print a traceback.
        with _errors():
            if not os.path.isdir(directory):
                os.mkdir(directory)
            self._writer = tf.io.TFRecordWriter(os.path.join(directory, _new_name(directory)))
        self._write(file_version='brain.Event:2')
        with _errors():
            files.sync(directory)  # so that a power failure leaves the file there

    def add_graph(self, graph: tf.Graph) -> None:
        """Writes the graph without the values of large constants, which TensorBoard does not show."""
        definition = graph.as_graph_def(add_shapes=True)
        for node in definition.node:
            if node.op == 'Const' and node.ByteSize() > _LARGEST_NODE:
                node.attr['value'].tensor.ClearField('tensor_content')
        self._write(graph_def=definition.SerializeToString())

    def drop_after(self, step: int) -> None:
        """Makes TensorBoard drop earlier data for the steps after `step`, because the run repeats them."""
        self._write(step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START))

    def add(self, summary: bytes, step: int) -> None:
        """Writes a serialised `tf.Summary`."""
        self._write(step, summary=tf.Summary.FromString(summary))

    def add_figures(self, figures: Mapping[str, float], step: int) -> None:
        """Adds a point to the curve of each named figure."""
        points = [tf.Summary.Value(tag=self.group + (name if name in SHOWN else DETAILS + name), simple_value=figure)
                  for name, figure in figures.items()]
        self._write(step, summary=tf.Summary(value=points))

    def add_config(self, settings: Mapping[str, Any], command: str, step: int) -> None:
        """Writes a table of settings, and the command that continues the run."""
        rows = [f'| {name} | {escaped(str(value))} |' for name, value in settings.items()]
        self.add_text('config', '\n'.join(['| setting | value |', '|---|---|', *rows, '', f'    {command}']), step)

    def add_hyperparameters(self, settings: Mapping[str, Any]) -> None:
        """Writes settings for the table in the tab HPARAMS.

        The table has a row per directory, with the first settings written there and the newest values of the curves.
        So it omits the length of a run, which may change.
        """
        settings = {name: value for name, value in settings.items() if name != 'max_steps'}
        self.add(session_start_pb(settings).SerializeToString(), 0)

    def add_text(self, tag: str, markdown: str, step: int) -> None:
        self._add_strings('text', tag, [markdown.encode(errors='replace')], step)

    def add_image(self, tag: str, pixels: np.ndarray, step: int, description: str = '') -> None:
        """Writes an image, uint8 [height, width, 3], with a description that TensorBoard shows next to its tag."""
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, 'PNG')
        height, width, _ = pixels.shape
        self._add_strings('images', tag, [b'%d' % width, b'%d' % height, stream.getvalue()], step, description)

    def _add_strings(self, plugin, tag, strings, step, description=''):
        metadata = tf.SummaryMetadata(summary_description=description,
                                      plugin_data=tf.SummaryMetadata.PluginData(plugin_name=plugin))
        tensor = tf.make_tensor_proto(strings, tf.string)
        self._write(step, summary=tf.Summary(value=[tf.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]))

    def close(self) -> None:
        """Closes the file and ignores errors: it already holds every summary."""
        with contextlib.suppress(Exception):
            self._writer.close()

    def _write(self, step=0, **content):
        with _errors():
            self._writer.write(tf.Event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._writer.flush()


def escaped(name: str) -> str:
    """Escapes the Markdown characters in the name of a class or file."""
    return re.sub(r'([\\`*_{}\[\]<>#|~])', r'\\\1', name)


def _new_name(directory):
    """Returns the name of a new event file in TensorFlow's format.

    TensorBoard reads files in the order of their names. So the new name sorts after all existing names, even if the
    clock is slow or the directory gets two files in one second.
    """
    found = filter(None, map(_SECONDS.match, glance(directory).files))
    second = max([int(time.time()), *(int(name[1].ljust(10, '0')) + 1 for name in found)])
    return f'events.out.tfevents.{second:010}.{socket.gethostname()}.{os.getpid()}{EVENTS_SUFFIX}'


@contextlib.contextmanager
def _errors():
    try:
        yield
    except (tf.errors.OpError, OSError) as error:
        why = describe_os_error(error) if isinstance(error, OSError) else reason(error)
        raise RunError(f'the file for TensorBoard cannot be written ({why}); remove the cause, and start again to '
                       'continue') from error


class Summaries(Reporter):
    """Writes periodic summaries. The first summary shows the first tower's input.

    Args:
      every: steps between two summaries; in `async`, the first tower's next step has the summary; 0: none.
      summary, inputs: from the `TrainingGraph`.
    """

    def __init__(self, events: Events, every: int, classes: Sequence[str], summary: tf.Tensor | None,
                 inputs: Sequence[tf.Tensor]):
        self._events = events
        self._every = every
        self._classes = classes
        self._of_summary = dict(summary=summary, inputs=inputs)
        self._is_due, self._has_inputs = False, not inputs

    def also(self, step, thread):
        self._is_due |= due(self._every, step)
        if thread or not self._is_due:  # it is one of the first tower
            return {}
        self._is_due = False
        return self._of_summary  # the same object, because TensorFlow prepares a graph for each new one

    def after_step(self, step, results):
        # Written at once, so that no curve ends before the checkpoint that a killed run resumes from.
        if 'summary' in results:
            self._events.add(results['summary'], step)
            if not self._has_inputs:  # a picture takes longer than a step
                self._has_inputs = True
                self._events.add_image(IMAGES + 'inputs', _captioned(self._classes, *results['inputs']), step)


def _captioned(classes, images, labels):
    """Returns a picture of network inputs with their classes; mixed images show their two largest classes."""
    names = pictures.names(classes)
    if labels.ndim == 1:
        return pictures.captioned(images, [[names[label]] for label in labels])
    captions = []
    for fractions in labels:
        largest = np.argsort(-fractions, kind='stable')[:2]
        captions.append([f'{names[k]} {fractions[k]:.1f}' if fractions[k] >= 0.05 else '' for k in largest])
    return pictures.captioned(images, captions)
