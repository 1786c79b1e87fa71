"""Users' losses: towers have the variables of one tower, or the loss is refused or reported before training."""
import itertools

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from tests import losses
from tests.helpers import ROOT, last_variables, mostly_stress, rehearsed

TRAINED = ('cross_entropy', 'focal', 'hinge', 'of_tf_losses', 'with_a_weight', 'with_centers', 'with_class_weights',
           'smoothed', 'above_a_margin',
           'in_an_absolute_scope')
REFUSED = {
    'mean': 'return one loss per example, float [8]',
    'of_each_class': 'it returns a tensor float32 (8, 1) (line ',
    'nothing': 'it returns None; return one loss per example',
    'constant': 'no variable has a gradient',
    'of_a_placeholder': 'it needs the placeholder',
    'misspelt': "has no attribute 'sparse_softmax' (line "}
BY_BATCH = 'depends on how examples are divided'
WARNED = {**dict.fromkeys(['relative', 'weighted_by_those_of_the_batch', 'ranked'], BY_BATCH),
          'with_noise': 'draws different random numbers after a resume'}


def name_of(function):
    return f'{ROOT}/tests/losses.py:{function}'


@pytest.fixture
def trained(train_with):
    """A function that trains the linear network on 8 examples a step and returns its variables."""
    def run(name, towers=1, mode='parameter_server', **changes):
        return train_with(name, 'linear', mode, num_gpus=towers, num_towers=towers, batch_size=8 // towers,
                          save_steps=6, **changes)
    return run


@pytest.mark.parametrize('function, mode', mostly_stress(
    [*itertools.product(TRAINED, ['parameter_server']), ('with_centers', 'replicated'), ('with_centers', 'local'),
     ('with_centers', 'mirrored')], ('with_centers', 'parameter_server')))
def test_towers_have_the_variables_of_one_tower(function, mode, trained):
    local = dict(local_steps=1) if mode == 'local' else {}
    expected = trained('one', loss=name_of(function))
    found = trained('two', 2, mode, loss=name_of(function), **local)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_users_cross_entropy_has_the_bits_of_the_built_in_one(trained):
    own, programs = trained('own', loss=name_of('cross_entropy'), steps=1), trained('programs', steps=1)
    assert {name: value.tobytes() for name, value in own.items()} == {
        name: value.tobytes() for name, value in programs.items()}


@pytest.mark.parametrize('function', REFUSED)
def test_an_invalid_per_example_loss_is_refused_in_one_line(function):
    with pytest.raises(UsageError) as refused:
        rehearsed('linear', batch_size=8, loss=name_of(function))
    assert REFUSED[function] in str(refused.value) and '\n' not in str(refused.value)


@pytest.mark.parametrize('function', mostly_stress([*WARNED, *TRAINED], *WARNED, 'above_a_margin', 'with_centers'))
def test_a_probably_mistaken_loss_gets_a_warning(function):
    warnings = rehearsed('linear', batch_size=8, loss=name_of(function))
    assert len(warnings) == (function in WARNED) and all(WARNED[function] in warning for warning in warnings)


def test_a_run_keeps_its_loss(call, settings):
    given = settings(max_steps=2)
    flags = [f'--train_dir={given.run.train_dir}', f'--data_dir={given.data.data_dir}', '--dataset=shapes',
             '--batch_size=8', '--tower_device=cpu', '--network=linear']
    assert call('multi_gpu_train.py', *flags, '--max_steps=2', f"--loss={name_of('with_centers')}")[0] == 0
    status, error = call('multi_gpu_train.py', *flags, '--max_steps=3', '--loss=cross_entropy')
    assert status == 2 and 'losses.py:with_centers' in error
    status, _ = call('multi_gpu_train.py', f'--train_dir={given.run.train_dir}', '--max_steps=3')
    assert status == 0 and last_variables(given.run.train_dir)['centers'].any()


def test_every_loss_is_in_a_table():
    assert {*TRAINED, *REFUSED, *WARNED} == {
        name for name, value in vars(losses).items() if getattr(value, '__module__', None) == losses.__name__}
