"""Timelines from hand-made traces: rows, text and picture."""

from lessons import timeline
from lessons.timeline import seconds
from tests.helpers import tf


def trace(**devices):
    """Returns the step_stats of a trace with (operation, start, end) triples, in microseconds, on each device."""
    step_stats = tf.RunMetadata().step_stats
    for device, operations in devices.items():
        name = f"/job:localhost/replica:0/task:0/device:{device.replace('_', ':')}"
        stats = step_stats.dev_stats.add(device=name)
        for operation, start, end in operations:
            stats.node_stats.add(node_name=operation, all_start_micros=start, op_end_rel_micros=end - start)
    return step_stats


def test_a_timeline_has_a_row_for_each_device_and_a_bar_for_each_name():
    step_stats = trace(CPU_10=[('b/x', 5_000_000, 6_000_000)], GPU_0=[('_SOURCE', 0, 1)],
                       CPU_2=[('a/x', 2_000_000, 3_000_000), ('a/y', 4_500_000, 5_000_000), ('c', 0, 9_000_000)])
    rows = timeline.rows(step_stats, lambda operation: operation.split('/')[0] if '/' in operation else None)
    assert rows == [('/cpu:2', [('a', 0.0, 3.0)]), ('/cpu:10', [('b', 3.0, 4.0)])]
    assert seconds(rows) == 4.0
    assert timeline.text(rows, 8) == '/cpu:2   a=====..\n/cpu:10  ......b=\n         0 s4.00 s'
    assert timeline.rows(trace(GPU_0=[('_SOURCE', 0, 1)])) == [] and seconds([]) == 0


def test_overlapping_bars_are_drawn_below_each_other():
    rows = timeline.rows(trace(CPU_0=[('long', 0, 400), ('b', 100, 200), ('c', 200, 300), ('d', 400, 800)]))
    lines = timeline.text(rows, 16).splitlines()
    assert lines[:2] == ['/cpu:0  long====d=======', '        ..b=c=..........']


def test_a_name_is_shown_in_full_or_not_at_all():
    rows = timeline.rows(trace(CPU_0=[('F1', 0, 100), ('F10', 100, 200), ('F11', 200, 400)]))
    assert timeline.text(rows, 8).splitlines()[0] == '/cpu:0  F1|=F11='
