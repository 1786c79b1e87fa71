"""docs/from-the-tutorial.md: it has every name of the tutorial's files, and what it says of this program is so."""
import glob
import os
import re

import pytest

from cifar10.model import averages, schedule
from cifar10.settings import evaluation, training
from cifar10.settings.definition import fields
from cifar10.settings.presets import PRESETS, RATES
from cifar10.training import trainer
from tests.helpers import ROOT, tf

PAGE = (ROOT / 'docs' / 'from-the-tutorial.md').read_text()
NAMES = [line.split(' ', 2) for line in (ROOT / 'tests' / 'tutorial_names.txt').read_text().splitlines()
         if not line.startswith('#')]

DEFAULTS = dict(batch_size=128, data_dir='/tmp/cifar10_data', use_fp16=False, train_dir='/tmp/cifar10_train',
                max_steps=1000000, num_gpus=1, log_frequency=10, log_device_placement=False,
                eval_dir='/tmp/cifar10_eval', eval_data='test', checkpoint_dir='/tmp/cifar10_train',
                eval_interval_secs=300, num_examples=10000, run_once=False)  # of the tutorial's flags


def table(heading):
    """Returns the rows of the table with a first heading, each a list of its cells."""
    rows = re.search(rf'^\| {heading} \|.*\n\|[-|]+\n((?:\|.*\n)+)', PAGE, re.M).group(1)
    return [[cell.strip() for cell in row.strip('|').split(' | ')] for row in rows.splitlines()]


@pytest.mark.parametrize('kind', ['constant', 'function', 'printed', 'summary'])
def test_every_name_of_the_tutorial_has_a_row(kind):
    rows, names = table(kind), [each[1:] for each in NAMES if each[0] == kind]
    assert names
    for file, name in names:
        found = [row for row in rows if f'`{name}`' in row[0]]
        if kind == 'function':
            found = [row for row in found if f'`{file}`' in row[0]]
        assert found and all(found[0][1:]), f'{name} of {file}'


def test_what_stands_in_a_file_here_is_there():
    for kind in ('constant', 'function'):
        for row in table(kind):
            for names, path in re.findall(r'((?:`\w+`(?: and )?)+) in `(cifar10/[\w/]+\.py)`', row[-1]):
                for name in re.findall(r'`(\w+)`', names):
                    assert re.search(rf'\b{name}\b', (ROOT / path).read_text()), (name, path)


def test_the_flags_have_the_defaults_of_the_tutorial():
    # The trainer's last: --data_dir, --train_dir and --batch_size of the evaluator are those of the run.
    defaults = {field.name: field.default for group in (evaluation.GROUPS, training.GROUPS) for field in fields(*group)}
    for _, _, flag in [each for each in NAMES if each[0] == 'flag']:
        name = flag.removeprefix('--')
        default = PRESETS['classic'].get(name, defaults[name])
        assert default == DEFAULTS[name] or name == 'num_examples' and default is None, name


def test_the_constants_have_the_values_of_the_tutorial():
    values = {row[0].strip('`'): row[1] for row in table('constant')}
    assert float(values['MOVING_AVERAGE_DECAY']) == averages.DECAY
    assert int(values['NUM_EPOCHS_PER_DECAY']) == schedule.DECAY_EPOCHS
    assert float(values['LEARNING_RATE_DECAY_FACTOR']) == schedule.DECAY_FACTOR
    assert float(values['INITIAL_LEARNING_RATE']) == RATES['sgd'].learning_rate


@pytest.mark.classic
def test_the_summaries_of_the_page_are_in_the_file_of_a_run(settings):
    config = settings(num_gpus=2, max_steps=2, summary_steps=1)
    trainer.train(config)
    path, = glob.glob(os.path.join(config.run.train_dir, 'train', 'events.*'))
    tags = {value.tag for event in tf.train.summary_iterator(path) for value in event.summary.value}
    losses = re.findall(r'`([\w/]+)`', re.search(r'A `<loss>` is (.*?);', PAGE).group(1))
    on_page = []
    for _, here in table('summary'):
        named = re.findall(r'`((?:details|images|variables)/[^`]+|loss)`', here)
        assert named or here == '`accuracy` of the run `eval`'
        for name in named:
            if '<loss>' in name:  # of any of the losses that the table names
                on_page += [name.replace('<loss>', loss) for loss in losses]
            else:
                pattern = re.compile(re.sub(r'<\w+>', r'[\\w/]+', name) + r'(/image/\d)?')
                assert any(pattern.fullmatch(tag) for tag in tags), name
                on_page += [tag for tag in tags if pattern.fullmatch(tag)]
    assert set(on_page) <= tags
    # What the tutorial does not have: the accuracy, and its two kinds of losses under names of their own.
    assert tags - set(on_page) == {'accuracy', 'cross_entropy', 'details/weight_loss', 'config'}
