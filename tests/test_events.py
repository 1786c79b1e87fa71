"""The files for TensorBoard, read by TensorBoard's own reader."""
import os
import time

import pytest
import tensorflow.compat.v1 as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cifar10.base.errors import RunError
from cifar10.run import metrics
from cifar10.run.events import Events
from tests.helpers import evaluated, train


def shown(folder):
    """Returns the curve's points {step: value} from TensorBoard's reader."""
    return {event.step: round(event.value, 3) for event in EventAccumulator(str(folder)).Reload().Scalars('loss')}


def files(folder):
    return sorted(name for name in os.listdir(folder) if 'tfevents' in name)


def write(folder, values, first_step=None):
    events = Events(str(folder))
    if first_step is not None:
        events.drop_after(first_step - 1)
    for step, value in values.items():
        events.add_figures({'loss': value}, step)
    events.close()


def test_files_of_the_same_second_are_not_overwritten(tmp_path):
    for step in range(10):
        write(tmp_path, {step: step})
    assert shown(tmp_path) == {step: step for step in range(10)}


@pytest.mark.parametrize('name', [
    'events.out.tfevents.{:010}.another.host.99999.cifar10', 'events.out.tfevents.{:013}.in-milliseconds'])
def test_a_start_with_a_slow_clock_sorts_after_earlier_starts(tmp_path, name):
    write(tmp_path, dict.fromkeys(range(1, 8), 0.1))
    earlier, = files(tmp_path)
    number = (time.time() + 7200) * (1000 if '13' in name else 1)
    os.rename(tmp_path / earlier, tmp_path / name.format(int(number)))  # a name from a fast clock
    write(tmp_path, dict.fromkeys(range(5, 10), 0.5), first_step=5)
    assert files(tmp_path)[0] == name.format(int(number))
    assert shown(tmp_path) == {**dict.fromkeys(range(1, 5), 0.1), **dict.fromkeys(range(5, 10), 0.5)}


def test_a_missing_folder_is_named(tmp_path):
    gone = tmp_path / 'gone'
    with pytest.raises(RunError, match=rf'^the file for TensorBoard cannot be written \({gone}/.*: No such file'):
        Events(str(gone / 'train'))


def contents(folder):
    """Returns the set of tags in each event file of a folder, oldest file first; '' means a graph."""
    found = []
    for name in files(folder):
        events = list(tf.train.summary_iterator(os.path.join(folder, name)))
        found.append({value.tag for event in events for value in event.summary.value} | {
            '' for event in events if event.graph_def})
    return found


OF_A_RESULT = {'accuracy', 'cross_entropy', 'details/mean_recall', 'by_class', 'images/confusion', 'largest_losses',
               'images/largest_losses'}
SETTINGS = '_hparams_/session_start_info'


def test_an_evaluation_is_not_written_twice(settings, tmp_path):
    train(settings(max_steps=4, eval_steps=4, augmentation='shift'))
    folder = tmp_path / 'train' / 'eval'
    for flags in ({}, {}, dict(num_examples=100)):
        evaluated(tmp_path / 'train', folder, **flags)
    averaged = {'details/averaged_accuracy'}
    assert [tags - {SETTINGS} for tags in contents(folder)] == [
        OF_A_RESULT, averaged, set(), OF_A_RESULT | averaged]
    evaluated(tmp_path / 'train', tmp_path / 'elsewhere')  # TensorBoard may show this folder alone
    assert contents(tmp_path / 'elsewhere') == [OF_A_RESULT | averaged | {SETTINGS}]


def test_the_graph_is_written_once_and_differences_from_the_preset_at_each_start(settings, tmp_path):
    for max_steps in (2, 4):
        train(settings(max_steps=max_steps, learning_rate=0.05, seed=3, augmentation='none'))
    first, second = contents(tmp_path / 'train' / 'train')
    assert '' in first and '' not in second and {'config', 'loss'} <= first & second
    path = tmp_path / 'train' / 'train' / files(tmp_path / 'train' / 'train')[1]
    [text] = [value.tensor.string_val[0].decode() for event in tf.train.summary_iterator(str(path))
              for value in event.summary.value if value.tag == 'config']
    table, command = text.split('\n\n')
    assert command == '    ' + metrics.read(str(tmp_path / 'train'), metrics.START)[-1]['command']
    rows = dict(row.strip('| ').split(' | ') for row in table.splitlines()[2:])
    assert rows.pop('dataset') == 'shapes' and rows == {
        'preset': 'classic', 'network': 'linear', 'num_towers': '1', 'batch_size': '8', 'learning_rate': '0.05',
        'max_steps': '4', 'seed': '3', 'augmentation': 'none'}
