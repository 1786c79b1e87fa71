"""The file of a run or an evaluation that TensorBoard reads."""
import contextlib
import io
import os
import re
import socket
import time
from collections.abc import Callable, Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

from cifar10.base.errors import RunError, describe_os_error, reason
from cifar10.run.folder import EVENTS_SUFFIX, glance
from cifar10.run.reporter import Rate, Reporter, due

# The groups of tags. TensorBoard sorts them by name and opens the first two, so these are what people look at
# first.
_LARGEST_NODE = 1000  # bytes of a constant in a graph, with its value
EVAL, TRAIN, TOWERS, LAYERS = 'eval/', 'train/', 'train_towers/', 'variables/'
_SECONDS = re.compile(r'events\.out\.tfevents\.(\d+)')  # in the name of an event file


class Events:
    """An event file of this program in a directory, for TensorBoard.

    Every method except `close` raises a RunError if the file cannot be written.
    """

    def __init__(self, directory: str):
        # A `tf.summary.FileWriter` writes in a thread, whose errors would be shown with a traceback.
        with _errors():
            self._writer = tf.io.TFRecordWriter(os.path.join(directory, _new_name(directory)))
        self._write(file_version='brain.Event:2')

    def add_graph(self, graph: tf.Graph) -> None:
        """Writes the graph of the program, without the values of large constants, which TensorBoard does not show."""
        definition = graph.as_graph_def(add_shapes=True)
        for node in definition.node:
            if node.op == 'Const' and node.ByteSize() > _LARGEST_NODE:
                node.attr['value'].tensor.ClearField('tensor_content')
        self._write(graph_def=definition.SerializeToString())

    def drop_after(self, step: int) -> None:
        """Makes TensorBoard drop what was written so far for the steps after `step`: they are repeated."""
        self._write(step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START))

    def add(self, summary: bytes, step: int) -> None:
        """Writes a serialised `tf.Summary`."""
        self._write(step, summary=tf.Summary.FromString(summary))

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes points of curves, by the tags of the curves."""
        points = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step, summary=tf.Summary(value=points))

    def add_text(self, tag: str, markdown: str, step: int) -> None:
        self._add_strings('text', tag, [markdown.encode(errors='replace')], step)

    def add_image(self, tag: str, pixels: np.ndarray, step: int, description: str = '') -> None:
        """Writes an image, uint8 [height, width, 3], with a description that TensorBoard shows beside its tag."""
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, 'PNG')
        height, width, _ = pixels.shape
        self._add_strings('images', tag, [b'%d' % width, b'%d' % height, stream.getvalue()], step, description)

    def _add_strings(self, plugin, tag, strings, step, description=''):
        """Writes what a plugin of TensorBoard takes as a tensor of strings."""
        metadata = tf.SummaryMetadata(summary_description=description,
                                      plugin_data=tf.SummaryMetadata.PluginData(plugin_name=plugin))
        tensor = tf.make_tensor_proto(strings, tf.string)
        self._write(step, summary=tf.Summary(value=[tf.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]))

    def close(self) -> None:
        """Closes the file, ignoring errors: every summary is in it already."""
        with contextlib.suppress(Exception):
            self._writer.close()

    def _write(self, step=0, **content):
        with _errors():
            self._writer.write(tf.Event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._writer.flush()


def _new_name(directory):
    """Returns the name of a new event file, in the form that TensorFlow gives it.

    TensorBoard reads files in the order of their names, so it is behind all that are there, though the clock may be
    behind or two files be made in one second.
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
        raise RunError(f'the file for TensorBoard cannot be written ({why}); correct that, and start again to '
                       'continue') from error


class Curves(Reporter):
    """Writes a summary in the first step of all and in every `every`-th one; in `async`, the first tower's next one.

    Args:
      every: steps between two summaries; 0: none.
      summary: string scalar, a serialised `tf.Summary` of a step; None if there is none.
      clock: `Cost.seconds_of_steps`.
    """

    def __init__(self, events: Events, every: int, examples_per_step: int, summary: tf.Tensor | None,
                 clock: Callable[[], float]):
        self._summary = summary
        self._events = events
        self._every = every
        self._rate = Rate(examples_per_step)
        self._clock = clock
        self._is_due = False
        self._losses = {}  # the newest total loss of each tower

    def also(self, step, thread):
        self._is_due |= due(self._every, step) or (self._every > 0 and step == 1)
        if thread or not self._is_due:  # it is one of the first tower
            return {}
        self._is_due = False
        return dict(summary=self._summary)

    def after_step(self, step, results):
        now = self._clock()
        if self._rate.so_far(step, now) is None:  # the first step is no measure of speed
            self._rate.start(step, now)
        self._losses.update(enumerate(results['losses'], results['thread']))
        if 'summary' not in results:
            return
        speed = self._rate.measure(step, now)
        # In the file at once, so that no curve ends before the checkpoint that a killed run continues from.
        self._events.add(results['summary'], step)
        scalars = {f'{TOWERS}tower_{k}': loss for k, loss in self._losses.items()}
        if speed:
            scalars[TRAIN + 'examples_per_sec'] = speed[0]
        self._events.add_scalars(scalars, step)
