"""The files for TensorBoard, as TensorBoard's own reader shows them."""
import os
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifar10.base.errors import RunError
from cifar10.run.tensorboard import Events


def shown(folder):
    """Returns the points of the curve, as TensorBoard shows them: step -> value."""
    return {event.step: round(event.value, 3) for event in EventAccumulator(str(folder)).Reload().Scalars('x')}


def files(folder):
    return sorted(name for name in os.listdir(folder) if 'tfevents' in name)


def write(folder, values, first_step=None):
    events = Events(str(folder))
    if first_step is not None:
        events.drop_after(first_step - 1)
    for step, value in values.items():
        events.add_scalars({'x': value}, step)
    events.close()


def test_no_file_of_the_same_second_is_overwritten(tmp_path):
    for step in range(10):
        write(tmp_path, {step: step})
    assert shown(tmp_path) == {step: step for step in range(10)}


@pytest.mark.parametrize('name', [
    'events.out.tfevents.{:010}.another.host.99999.cifar10', 'events.out.tfevents.{:010}.zz.1', 'events.out.tfevents.9',
    'events.out.tfevents.{:013}.in-milliseconds'])
def test_a_start_whose_clock_is_behind_comes_after_the_earlier_ones(tmp_path, name):
    write(tmp_path, dict.fromkeys(range(1, 8), 0.1))
    earlier, = files(tmp_path)
    number = (time.time() + 7200) * (1000 if '13' in name else 1)
    os.rename(tmp_path / earlier, tmp_path / name.format(int(number)))  # as a clock that was ahead would have named it
    write(tmp_path, dict.fromkeys(range(5, 10), 0.5), first_step=5)
    assert files(tmp_path)[0] == name.format(int(number))
    assert shown(tmp_path) == {**dict.fromkeys(range(1, 5), 0.1), **dict.fromkeys(range(5, 10), 0.5)}


def test_a_folder_that_is_gone_is_named(tmp_path):
    gone = tmp_path / 'gone'
    with pytest.raises(RunError, match=rf'^the file for TensorBoard cannot be written \({gone}/.*: No such file'):
        Events(str(gone))
