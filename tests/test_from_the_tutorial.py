"""docs/from-the-tutorial.md: flags and constants have the tutorial's values; its functions are in the given files."""
import re

from cifar10.model import averages, schedule
from cifar10.settings import evaluation, training
from cifar10.settings.definition import fields
from cifar10.settings.presets import PRESETS, RATES
from tests.helpers import ROOT

PAGE = (ROOT / 'docs' / 'from-the-tutorial.md').read_text()
NAMES = [line.split() for line in (ROOT / 'tests' / 'tutorial_names.txt').read_text().splitlines()
         if not line.startswith('#')]

DEFAULTS = dict(batch_size=128, data_dir='/tmp/cifar10_data', use_fp16=False, train_dir='/tmp/cifar10_train',
                max_steps=1000000, num_gpus=1, log_frequency=10, log_device_placement=False,
                eval_dir='/tmp/cifar10_eval', eval_data='test', checkpoint_dir='/tmp/cifar10_train',
                eval_interval_secs=300, num_examples=10000, run_once=False)  # the tutorial's flags


def test_flags_have_the_tutorials_defaults():
    # The trainer's flags override the evaluator's --data_dir, --train_dir and --batch_size, which come from the run.
    defaults = {field.name: field.default for group in (evaluation.GROUPS, training.GROUPS) for field in fields(*group)}
    for _, flag in NAMES:
        name = flag.removeprefix('--')
        default = PRESETS['classic'].get(name, defaults[name])
        assert default == DEFAULTS[name] or name == 'num_examples' and default is None, name


def test_constants_have_the_tutorials_values():
    assert averages.DECAY == 0.9999  # MOVING_AVERAGE_DECAY
    assert schedule.DECAY_EPOCHS == 350  # NUM_EPOCHS_PER_DECAY
    assert schedule.DECAY_FACTOR == 0.1  # LEARNING_RATE_DECAY_FACTOR
    assert RATES['sgd'].learning_rate == 0.1  # INITIAL_LEARNING_RATE


def test_the_tutorials_functions_are_where_the_page_says():
    found = re.findall(r'((?:`\w+`(?: and )?)+) (?:are|is) in\s+\[`[\w/.]+`\]\(\.\./([\w/.]+)\)', PAGE)
    assert len(found) == 2
    for names, path in found:
        for name in re.findall(r'`(\w+)`', names):
            assert f'\ndef {name}(' in (ROOT / path).read_text()
