"""Timelines from the trace of any `session.run`: the work of each device over time, as text or as a picture.

    metadata = tf.RunMetadata()
    session.run(fetches, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    rows = timeline.rows(metadata.step_stats)
"""
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple


class Bar(NamedTuple):
    """A stretch of work, with its start and end in seconds since the start of the first bar of all."""
    name: str
    start: float
    end: float


class Row(NamedTuple):
    """A device, such as '/cpu:0', and its bars in the order of their starts."""
    device: str
    bars: list[Bar]


def seconds(rows: Sequence[Row]) -> float:
    """Returns the end of the last bar."""
    return max((bar.end for row in rows for bar in row.bars), default=0.0)


def rows(step_stats: Any, name_of: Callable[[str], str | None] = lambda operation: operation) -> list[Row]:
    """Returns a row for each device that ran an operation, in the order of the devices' names.

    Args:
      step_stats: the `step_stats` of a `tf.RunMetadata`.
      name_of: function that takes the name of an operation and returns the name of its bar, or None to
        leave the operation out. Operations of a device that have the same name share a bar, from the start of
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


def draw(path: str, timelines: Sequence[tuple[str, Sequence[Row]]], kinds: Mapping[str, str]) -> None:
    """Draws timelines below each other, with one axis of seconds, into a PNG file; needs matplotlib.

    Args:
      path: of the file.
      timelines: at least one pair (title, rows).
      kinds: {beginning of the bars' names: label in the legend}. Each kind has its own colour.
    """
    from matplotlib import patches, pyplot
    longest = max(seconds(each) for _, each in timelines)
    colours = dict(zip(kinds, pyplot.get_cmap('tab20').colors[1::2]))  # the light ones, for black text
    lanes = [[('' if i else row.device, lane) for row in each for i, lane in enumerate(lanes_of(row.bars))]
             for _, each in timelines]
    figure, panels = pyplot.subplots(
        len(timelines), sharex=True, squeeze=False, layout='constrained',
        figsize=(8, sum(0.8 + 0.4 * len(each) for each in lanes)), height_ratios=[1 + len(each) for each in lanes])
    drawn = set()
    for (title, _), each, axes in zip(timelines, lanes, panels[:, 0]):
        for y, (_, lane) in enumerate(each):
            for bar in lane:
                length = bar.end - bar.start
                kind = next(kind for kind in kinds if bar.name.startswith(kind))
                drawn.add(kind)
                axes.barh(y, length, left=bar.start, height=0.8, color=colours[kind], edgecolor='white')
                if length > 0.012 * len(bar.name) * longest:  # there is room for its name
                    axes.text(bar.start + length / 2, y, bar.name, ha='center', va='center', fontsize=9)
        axes.set_yticks(range(len(each)), [device for device, _ in each])
        axes.invert_yaxis()  # the first device on top
        axes.set_xlim(0, longest)
        axes.spines[['top', 'right']].set_visible(False)
        axes.set_title(title, loc='left', fontsize=10)
    panels[-1, 0].set_xlabel('seconds')
    figure.legend(handles=[patches.Patch(color=colours[kind], label=kinds[kind]) for kind in kinds if kind in drawn],
                  loc='outside lower center', ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=200, format='png')
    pyplot.close(figure)


def lanes_of(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Divides a device's bars into the fewest lists without overlaps."""
    lanes = []
    for bar in bars:
        lane = next((lane for lane in lanes if lane[-1].end <= bar.start), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(bar)
    return lanes
