"""The plot of the images that a network is fed."""
import numpy as np
import pytest

from cifar10.base import directories
from cifar10.base.errors import UsageError
from cifar10.data import records
from cifar10.data.shapes import CLASSES
from cifar10.parallel import devices
from cifar10.programs import show_inputs as program
from cifar10.tools import show_inputs
from cifar10.training import graph
from cifar10.training.start import Start
from tests.helpers import initialise, planned, tf


@pytest.mark.parametrize('changes', [{}, pytest.param(
    dict(preset='fast', epochs=2.0, max_steps=None, precision='fp32'), marks=pytest.mark.stress)])
def test_the_images_are_those_that_the_first_tower_gets(settings, data_dir, changes):
    config = settings(batch_size=6, **changes)
    first, last = show_inputs.inputs_of(config, 6)
    data = records.prepare('shapes', data_dir)
    start = Start(config, devices.choose(1, 'cpu'), data=data)
    planned(start)
    built = graph.build(start.plan, graph.learnt(start.plan))
    with tf.Session() as session:
        initialise(session)
        session.run(built.start_inputs)
        images, labels, _ = session.run(built.batches[0])
    np.testing.assert_array_equal(first.augmented, images)
    assert first.names == [CLASSES[i] for i in labels]
    rows = np.concatenate([np.fromfile(path, np.uint8) for path in data.files]).reshape(-1, 3073)
    for block in (first, last):
        for name, original in zip(block.names, block.originals):
            row, = rows[(rows[:, 1:] == original.transpose(2, 0, 1).reshape(-1)).all(1)]
            assert CLASSES[row[0]] == name
    assert last.augmented.shape[1] == (28 if changes else 24) and first.augmented.shape[1] == (20 if changes else 24)


@pytest.mark.stress
def test_the_plot_is_written(settings, data_dir, tmp_path, monkeypatch, capsys):
    pytest.importorskip('matplotlib')
    monkeypatch.setattr('sys.argv', ['show_inputs', '--dataset=shapes', f'--data_dir={data_dir}',
                                     f"--out={tmp_path / 'inputs.png'}"])
    program.main()
    assert (tmp_path / 'inputs.png').read_bytes().startswith(b'\x89PNG')
    assert capsys.readouterr().out == f"written    {tmp_path / 'inputs.png'}\n"


def test_the_names_of_any_folders_can_be_drawn(tmp_path):
    pytest.importorskip('matplotlib')
    blank = np.zeros([3, 32, 32, 3], np.uint8)
    names = ['b\udcffe', '$a^$', 'c_d']
    show_inputs.draw(str(tmp_path / 'i.png'), [show_inputs.Inputs('', names, blank, blank.astype(np.float32))])
    assert (tmp_path / 'i.png').read_bytes().startswith(b'\x89PNG')


@pytest.mark.parametrize('name, part', [('', 'is not the name of a PNG file'), ('/i.jpg', 'one that ends in .png'),
                                        ('/no/i.png', 'does not exist')])
def test_a_path_that_no_plot_can_be_written_to_is_refused_before_the_work(tmp_path, name, part):
    pytest.importorskip('matplotlib')
    with pytest.raises(UsageError, match=part):
        directories.check_plot(f'{tmp_path}{name}')


def test_help_shows_the_flags_that_matter_and_all_flags_of_a_run_are_accepted(monkeypatch, capsys):
    monkeypatch.setattr('sys.argv', ['show_inputs', '--num_gpus=4', '--help'])
    with pytest.raises(SystemExit):
        program.main()
    output = capsys.readouterr().out
    assert '--out' in output and '--sizes' in output and '--num_gpus' not in output and 'Cluster' not in output
