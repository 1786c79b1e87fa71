"""Timelines from the trace of any `session.run`, and as text. `cifar10.tools.timeline` draws them as a picture.

    metadata = tf.RunMetadata()
    session.run(fetches, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    rows = timeline.rows(metadata.step_stats)
"""
import re
from collections.abc import Callable, Sequence
from typing import Any

from cifar10.tools.timeline import Bar, Row, lanes_of, seconds


def rows(step_stats: Any, name_of: Callable[[str], str | None] = lambda operation: operation) -> list[Row]:
    """Returns a row for each device on which something ran, in the order of the devices' names.

    Args:
      step_stats: the `step_stats` of a `tf.RunMetadata`.
      name_of: function that takes the name of an operation and returns the name of its bar, or None if the
        operation is not to be shown. Operations of a device that have the same name share a bar, from the start of
        the first to the end of the last.
    """
    found = {}
    for device in step_stats.dev_stats:
        bars = found.setdefault(_short(device.device), {})
        for node in device.node_stats:
            # Names with a leading underscore are TensorFlow's own: the source, the sink, the values returned.
            name = None if node.node_name.startswith('_') else name_of(node.node_name)
            if name is not None:
                start = node.all_start_micros + node.op_start_rel_micros
                end = node.all_start_micros + node.op_end_rel_micros
                bar = bars.get(name, (start, end))
                bars[name] = (min(start, bar[0]), max(end, bar[1]))
    zero = min((start for bars in found.values() for start, _ in bars.values()), default=0)
    return [Row(device, sorted((Bar(name, (start - zero) / 1e6, (end - zero) / 1e6)
                                for name, (start, end) in bars.items()), key=lambda bar: bar[1:]))
            for device, bars in sorted(found.items(), key=lambda item: _natural(item[0])) if bars]


def _natural(name):
    """Returns a key that sorts '/cpu:2' before '/cpu:10'."""
    return [int(piece) if piece.isdigit() else piece for piece in re.split(r'(\d+)', name)]


def _short(device):
    """Returns '/cpu:0' for '/job:localhost/replica:0/task:0/device:CPU:0'; keeps the job and task of a cluster."""
    device = device.replace('/job:localhost/replica:0/task:0', '').replace('/replica:0', '')
    return re.sub(r'/device:(\w+)', lambda match: '/' + match.group(1).lower(), device)


def text(rows: Sequence[Row], width: int = 72) -> str:
    """Draws a timeline in characters: each bar begins with its name and is filled with '='; '.' is idle time.

    A bar that is shorter than its name begins with '|' instead, so that no name is cut.

    Args:
      rows: as `rows` returns them. Bars of a device that overlap are drawn below each other.
      width: characters from the start of the first bar to the end of the last.

    Returns:
      A line for each device, or several if its bars overlap, and a last line with the seconds.
    """
    scale = width / (seconds(rows) or 1)
    margin = max((len(row.device) for row in rows), default=0) + 2
    lines = []
    for row in rows:
        for i, lane in enumerate(lanes_of(row.bars)):
            line = ['.'] * width
            for bar, following in zip(lane, [*lane[1:], None]):
                # A gap of less than half a character is not shown.
                no_gap = following and (following.start - bar.end) * scale < 0.5
                first = min(round(bar.start * scale), width - 1)
                length = max(round((following.start if no_gap else bar.end) * scale) - first, 1)
                name = bar.name if len(bar.name) <= length else '|'
                line[first:first + length] = name.ljust(length, '=')
            lines.append(('' if i else row.device).ljust(margin) + ''.join(line))
    end = f'{seconds(rows):.2f} s'
    lines.append(' ' * margin + '0 s' + end.rjust(width - 3))
    return '\n'.join(lines)
