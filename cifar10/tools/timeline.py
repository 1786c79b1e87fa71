"""Timelines: which device did what when, drawn as a picture."""
from collections.abc import Mapping, Sequence
from typing import NamedTuple


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


def draw(path: str, timelines: Sequence[tuple[str, Sequence[Row]]], kinds: Mapping[str, str]) -> None:
    """Draws timelines below each other, with one axis of seconds, into a PNG file; needs matplotlib.

    Args:
      path: of the file.
      timelines: at least one pair (title, rows).
      kinds: the kinds of bars, by the beginnings of their names: what the legend calls them. Each has its own colour.
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
    figure.savefig(path, dpi=120, format='png')
    pyplot.close(figure)


def lanes_of(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Divides a device's bars into the fewest lists in which no two overlap."""
    lanes = []
    for bar in bars:
        lane = next((lane for lane in lanes if lane[-1].end <= bar.start), None)
        if lane is None:
            lanes.append(lane := [])
        lane.append(bar)
    return lanes
