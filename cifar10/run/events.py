"""The file of a run or an evaluation that TensorBoard reads."""
import contextlib
import io
import os
import socket
import time
from collections.abc import Mapping

import numpy as np
import tensorflow.compat.v1 as tf
from PIL import Image

from cifar10.base.errors import RunError, reason
from cifar10.run.names import EVENTS_SUFFIX


class Events:
    """An event file of this program in a directory, for TensorBoard.

    Every method except `close` raises a RunError if the file cannot be written.
    """

    def __init__(self, directory: str):
        # As TensorFlow names it. The process number keeps two files apart that were made on one machine in the same
        # second.
        name = f'events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}{EVENTS_SUFFIX}'
        # A `tf.summary.FileWriter` writes in a thread, whose errors would be shown with a traceback.
        with _errors():
            self._writer = tf.io.TFRecordWriter(os.path.join(directory, name))
        self._write(file_version='brain.Event:2')

    def add_graph(self, graph: tf.Graph) -> None:
        """Writes the graph of the program."""
        self._write(graph_def=graph.as_graph_def(add_shapes=True).SerializeToString())

    def drop_after(self, step: int) -> None:
        """Makes TensorBoard drop what was written so far for the steps after `step`: they are taken again."""
        self._write(step + 1, session_log=tf.SessionLog(status=tf.SessionLog.START))

    def add(self, summary: bytes, step: int) -> None:
        """Writes a serialised `tf.Summary`."""
        self._write(step, summary=tf.Summary.FromString(summary))

    def add_scalars(self, values: Mapping[str, float], step: int) -> None:
        """Writes points of curves, by the tags of the curves."""
        points = [tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._write(step, summary=tf.Summary(value=points))

    def add_text(self, tag: str, markdown: str, step: int) -> None:
        """Writes a Markdown text."""
        metadata = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name='text'))
        tensor = tf.make_tensor_proto([markdown.encode(errors='replace')], tf.string)
        self._write(step, summary=tf.Summary(value=[tf.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)]))

    def add_image(self, tag: str, pixels: np.ndarray, step: int) -> None:
        """Writes an image, uint8 [height, width, 3]."""
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, 'PNG')
        height, width, depth = pixels.shape
        image = tf.Summary.Image(
            height=height, width=width, colorspace=depth, encoded_image_string=stream.getvalue())
        self._write(step, summary=tf.Summary(value=[tf.Summary.Value(tag=tag, image=image)]))

    def close(self) -> None:
        """Closes the file, ignoring errors: every summary is in it already."""
        with contextlib.suppress(Exception):
            self._writer.close()

    def _write(self, step=0, **content):
        with _errors():
            self._writer.write(tf.Event(wall_time=time.time(), step=step, **content).SerializeToString())
            self._writer.flush()


@contextlib.contextmanager
def _errors():
    try:
        yield
    except tf.errors.OpError as error:
        raise RunError(f'the file for TensorBoard cannot be written ({reason(error)})') from error
