"""What TensorBoard shows of a step, as summary operations on the CPU, and the file that it reads.

The names are the project's contract (docs/outputs.md). The raw operations are used because
they take a tag as it is; `tf.summary` would put the name scope before it.
"""
import contextlib
import os
import re
from collections.abc import Sequence

import tensorflow.compat.v1 as tf
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.summary import v1 as tensorboard_summary

from cifar10.errors import RunError, reason
from cifar10.parallel.update import Step
from cifar10.run import picture
from cifar10.run.train_dir import EVENTS_SUFFIX

# What tags begin with. TensorBoard sorts by it and opens the first two groups: what people look at first.
EVAL, TRAIN, TOWERS, LAYERS = 'eval/', 'train/', 'train_towers/', 'variables/'

# A histogram of 4.7 million activations takes longer than a training step, and one of 0.9 million weights
# as long: 8 images' will do, and every n-th value, at least so many of them.
_HISTOGRAM_IMAGES = 8
_HISTOGRAM_VALUES = 1 << 16
_MAX_IMAGES = 4

_LOSSES = 'losses/'  # what names of single losses begin with
_DECAY = 0.9  # of their moving averages, as in the tutorial


def strip_tower(name: str) -> str:
    """Returns a name without the tower's prefix; this is the one place that knows it."""
    return re.sub(r'^tower_\d+/', '', name)


def losses(scope: str) -> dict[str, tf.Tensor]:
    """Returns a tower's losses, float32 scalars, by the names that they have after 'train/'.

    Args:
      scope: the tower's name scope.

    Returns:
      Each loss as 'losses/<its name in the tower>', and as 'weight_loss' the sum of those that are called so.
    """
    named = {}
    for loss in tf.get_collection(tf.GraphKeys.LOSSES, scope):
        name = _LOSSES + loss.op.name.removeprefix(scope)
        while name in named:  # one that was added twice, or another output of the same operation
            name += '_'
        named[name] = loss
    weight_losses = [loss for name, loss in named.items() if re.search(r'weight_loss(_\d+)?_*$', name)]
    return dict(named, weight_loss=tf.add_n(weight_losses) if weight_losses else tf.zeros([]))


def means(step: Step) -> dict[str, tf.Tensor]:
    """Returns the means over the towers of their scalars, by name; float32 scalars."""
    names, packed = list(step.scalars[0]), []
    for scalars in step.scalars:
        # As one vector, because the delay of a transfer between devices counts more than its bytes.
        operation = scalars['total_loss'].op
        with tf.colocate_with(operation), tf.name_scope(operation.name.rpartition('/')[0] + '/'):
            packed.append(tf.stack([scalars[name] for name in names]))
    with tf.device('/cpu:0'), tf.name_scope('summaries/'):
        return dict(zip(names, tf.unstack(tf.reduce_mean(packed, 0))))


def averaged_losses(means: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Operation]:
    """Averages each loss and their total over the steps, as the tutorial does; a session begins anew.

    Args:
      means: over the towers, as the function of that name returns them.

    Returns:
      ({tag after 'train/': the moving average with this step, float32 scalar}, the operation that keeps it, to be run
      once in each step).
    """
    names = [name for name in means if name.startswith(_LOSSES) or name == 'total_loss']
    with tf.device('/cpu:0'), tf.name_scope('summaries/'):
        # The sums, and last the sum of the weights: what is divided by it does not begin at 0.
        sums = tf.get_variable('summaries/averaged_losses', [len(names) + 1], tf.float32, tf.zeros_initializer(),
                               trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
        now = tf.stack([*[means[name] for name in names], 1.0])
        moved = _DECAY * sums.read_value() + (1 - _DECAY) * now
        averages = tf.unstack(moved[:-1] / moved[-1])
        return ({f'averaged_{name}': average for name, average in zip(names, averages)},
                sums.assign(moved, read_value=False))


def build(step: Step, figures: dict[str, tf.Tensor], rate: tf.Tensor, images: tf.Tensor,
          activations: Sequence[tf.Tensor]) -> tf.Tensor:
    """Builds the summary of a training step.

    Args:
      step: a `parallel.update.Step`; among its towers' scalars is 'total_loss'.
      figures: float32 scalars by the names that they have after 'train/'.
      rate: the learning rate, a float32 scalar.
      images: the first tower's batch, float32 [n, height, width, 3].
      activations: the first tower's layers, tensors named '<tower>/<layer>/<operation>'.

    Returns:
      A string tensor: a serialised `tf.Summary`.
    """
    with tf.device('/cpu:0'), tf.name_scope('summaries/'):
        parts = [_scalar(TRAIN + 'learning_rate', rate)]
        parts += [_scalar(TRAIN + name, figure) for name, figure in figures.items()]
        for k, scalars in enumerate(step.scalars):
            parts.append(_scalar(f'{TOWERS}tower_{k}', scalars['total_loss']))
        for name, value in step.values.items():
            parts.append(_histogram(LAYERS + name, value))
        for gradient, variable in step.gradients:
            if gradient is not None:
                parts.append(_histogram(f'{LAYERS}{variable.op.name}/gradients', gradient))
        named = set()
        for activation in activations:
            layer = LAYERS + strip_tower(activation.op.name).rsplit('/', 1)[0]
            if layer in named:  # a layer that shows several
                layer = LAYERS + strip_tower(activation.op.name)
            named.add(layer)
            parts.append(_histogram(layer + '/activations', activation[:_HISTOGRAM_IMAGES]))
            parts.append(_scalar(layer + '/sparsity', tf.nn.zero_fraction(activation)))
        parts.append(_image(TRAIN + 'images', images))
        for name, value in step.values.items():
            if value.shape.rank == 4 and value.shape[2] == 3:  # filters that see colours
                parts.append(_image(LAYERS + name, _tiled(value)))
        return tf.raw_ops.MergeSummary(inputs=parts)


def _scalar(tag, value):
    return tf.raw_ops.ScalarSummary(tags=tag, values=value)


def _histogram(tag, value):
    """A histogram of a tensor's values; of a large one, of every n-th value."""
    surplus = value.shape.num_elements() // _HISTOGRAM_VALUES if value.shape.is_fully_defined() else 1
    if surplus > 1:
        value = tf.reshape(value, [-1])[::surplus]
    # The operation fails on a NaN, and the step with it; `training.refuse_divergence` reports it.
    value = tf.where(tf.is_finite(value), value, tf.zeros_like(value))
    return tf.raw_ops.HistogramSummary(tag=tag, values=value)


def _image(tag, value):
    return tf.raw_ops.ImageSummary(tag=tag, tensor=value, max_images=_MAX_IMAGES)


def _tiled(filters):
    """Returns filters [height, width, 3, n] as one image, eight in a row, a pixel apart."""
    height, width, depth, n = filters.shape.as_list()
    columns = min(8, n)
    rows = -(-n // columns)
    tiles = tf.pad(tf.transpose(filters, [3, 0, 1, 2]), [[0, rows * columns - n], [0, 1], [0, 1], [0, 0]])
    tiles = tf.reshape(tiles, [rows, columns, height + 1, width + 1, depth])
    return tf.reshape(tf.transpose(tiles, [0, 2, 1, 3, 4]), [1, rows * (height + 1), columns * (width + 1), depth])


class Events:
    """An event file of this program in a directory, for TensorBoard.

    Every method but `close` raises a RunError if the file cannot be written.
    """

    def __init__(self, directory: str):
        self._newest = 0  # step of which something was written
        with self._errors():
            # With the process number: the rest of the name is the second and the machine, which two may share.
            self._writer = tf.summary.FileWriter(directory, filename_suffix=f'.{os.getpid()}{EVENTS_SUFFIX}')

    def begin(self, graph: tf.Graph, fetched: Sequence[tf.Tensor | tf.Operation], last_step: int | None = None) -> None:
        """Writes the graph and the layout of the curves.

        Args:
          graph: of the program.
          fetched: what it runs, over and over; the picture of the graph is of what they need.
          last_step: TensorBoard drops what earlier processes wrote of the steps after it, if given.
        """
        with self._errors():
            if last_step is not None:
                self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), last_step + 1)
            shown = picture.of_graph(graph.as_graph_def(), [each.name for each in fetched])
            self._writer.add_event(tf.Event(graph_def=shown.SerializeToString()))
            self._writer.add_summary(_layout())

    def drop_after(self, last_step: int) -> None:
        """Makes TensorBoard drop what this process wrote of the steps after `last_step`, if it did: they come again."""
        if last_step < self._newest:
            with self._errors():
                self._writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), last_step + 1)
            self._newest = last_step

    def add(self, summary: tf.Summary | bytes, step: int) -> None:
        """Writes a `tf.Summary` or a serialised one, and sees to it that it is in the file on return."""
        with self._errors():
            self._writer.add_summary(summary, step)
            self._writer.flush()
        self._newest = max(self._newest, step)

    def close(self) -> None:
        """Closes the file, ignoring errors: every summary is in it already."""
        with contextlib.suppress(Exception):
            self._writer.close()

    @contextlib.contextmanager
    def _errors(self):
        try:
            yield
        except Exception as error:  # of any type: it depends on where in the writer's thread the disk was full
            raise RunError(f'the file for TensorBoard cannot be written ({reason(error)})') from error


def scalars(values: dict[str, float]) -> tf.Summary:
    """Returns a `tf.Summary` of Python numbers by their tags."""
    return tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])


def _layout():
    """Returns the layout of TensorBoard's tab Custom scalars: the curves that belong together, in one chart each."""
    def chart(title, *tags):
        return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=tags))
    return tf.Summary.FromString(tensorboard_summary.custom_scalar_pb(layout_pb2.Layout(category=[
        layout_pb2.Category(title='training', chart=[
            chart('loss', *(TRAIN + name for name in ('total_loss', 'cross_entropy', 'weight_loss'))),
            chart('each loss, averaged', TRAIN + 'averaged_.*'),
            chart('accuracy', TRAIN + 'accuracy', EVAL + 'precision', EVAL + 'averaged_precision'),
            chart('cross entropy', TRAIN + 'cross_entropy', EVAL + 'cross_entropy'),
            chart('learning rate', TRAIN + 'learning_rate'), chart('speed', TRAIN + 'examples_per_sec')]),
        layout_pb2.Category(title='towers', chart=[chart('total loss', TOWERS + '.*')]),
        layout_pb2.Category(title='layers', closed=True, chart=[chart('sparsity', LAYERS + '.*/sparsity')])],
    )).SerializeToString())


def text(tag: str, markdown: str) -> tf.Summary:
    """Returns a `tf.Summary` of a text."""
    metadata = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name='text'))
    tensor = tf.make_tensor_proto([markdown.encode(errors='replace')], tf.string)
    return tf.Summary(value=[tf.Summary.Value(tag=tag, metadata=metadata, tensor=tensor)])
