"""Networks in the style of TensorFlow 1: any number of towers gives the variables of one tower, or they are refused.

The table has idioms and not features, because the same rules must work for any network. A new idiom is a line.
"""
import itertools

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.base.registry import UPDATE_MODES
from cifar10.data import datasets
from cifar10.data.pipeline import Source
from cifar10.model.averages import saved_names
from cifar10.own.isolated_call import with_feeds
from cifar10.parallel import devices
from cifar10.settings.training import train_settings
from cifar10.training.run import Run
from tests import idioms
from tests.helpers import ROOT, add_tower, mostly_stress, own_towers, plan_of, rehearsed, tf, update_mode

STEPS, GLOBAL_BATCH = 5, 8

TRAINED = [
    'over_trainable_variables', 'custom_getter', 'embedding', 'unused', 'drawn_in_the_function', 'drawn_in_the_file',
    'loss_in_the_other_branch', 'regularizer_of_a_scope', 'regularizer_of_a_shared_variable', 'regularizers_summed',
    'moving_averages_in_a_group', 'moving_average_in_place', 'exponential_moving_average', 'counter',
    'variables_by_hand', 'variables_without_names', 'only_first', 'placeholder_that_nothing_needs',
    'regularizer_that_is_printed', 'counter_set_twice', 'in_scopes_named_as_towers', 'moving_average_in_a_branch',
    'named_as_an_operation', 'begun_with_another_variable', 'made_in_a_loop', 'moving_average_that_is_collected',
    'averages_of_weights', 'branches_that_are_lists', 'dropped_in_the_other_branch', 'partitioned',
    'not_resource_variables', 'begun_with_a_random_tensor', 'dropped', 'averaged_activity',
    'runs_a_session_of_its_own', 'regularizer_in_a_loop', 'reused_from_here', 'switched_by_a_variable',
    'activations_of_all_kinds', 'of_a_known_number', 'with_no_operation',
    'unbiased_average', 'halved', 'frozen_in_training_only', 'read_after_it_is_assigned_in_an_update', 'made_twice',
    'kept_variable', 'counted_names', 'template_of_the_file', 'on_the_first_gpu', 'fed', 'with_an_optimizer',
    'printed']
# Towers that normalise with their own batches repeat their bits, but differ from one tower.
BY_BATCH = [
    'centred_by_what_is_assigned', 'normalised_by_image', 'read_after_it_is_assigned', 'batch_normalised',
    'batch_statistics', 'of_tf_layers_normalised', 'of_slim_normalised_in_place', 'of_slim_normalised_and_fed',
    'normalised_with_a_bias']
WARNED = {
    'assigned_in_vain': 'never runs (line ',
    'ignored_losses': 'it adds to the collection wd_losses',
    'batch_statistics': 'depend on the other images of its batch',
    'summed_up_in_evaluation': 'depend on the other images of its batch',
    'chosen_beside_a_counter': 'its gradient of k depends on how examples are divided',
    'summed_beside_dropout_and_statistics': 'its gradient of k depends on how examples are divided',
    'summed_by_a_small_change': 'the value that it assigns to centre depends on how examples are divided',
    'less_the_first': 'depends on how examples are divided',
    'failing_on_noise': 'it fails on random examples (',
    'counter_of_the_batch': 'the value that it assigns to count depends on how examples are divided',
    'queued': 'the value that it assigns to queue depends on how examples are divided'}
REFUSED = {
    'averages_of_weights_named_as_here': 'its moving average of the variable w has the same name',
    'counter_of_images': 'the integer variable count depends on the batch',
    'read_in_a_loop_after_it_is_assigned': 'reads the variable moving after',
    'assigned_in_a_branch': 'assign_sub outside branches',
    'assigned_and_trained': 'it assigns to the trained variable w (line ',
    'begun_with_the_images': 'the initial value of b needs the placeholder cifar10.inputs/batch_0, which nothing feeds',
    'drawn_in_training_only': 'changes each time the file is executed',
    'runs_a_session': 'it runs a session while the graph is built'}


def name_of(network):
    return f'{ROOT}/tests/idioms.py:{network}'


@pytest.fixture(scope='module')
def data(data_dir):
    return datasets.prepare('shapes', data_dir)


class Examples(Source):
    """Random examples, which are faster than the images of a data set."""

    def __init__(self, batch_size):
        self.batch_size, self.count, self.facts = batch_size, STEPS * GLOBAL_BATCH, {}

    def load(self):
        random = np.random.default_rng(0)
        images = tf.constant(random.standard_normal([self.count, 24, 24, 3], np.float32))
        return (images, tf.constant(random.integers(0, 10, self.count, np.int32))), tf.no_op()

    def stream(self, data, start, stop, towers, num_towers, at_a_time):
        examples = tf.data.Dataset.from_tensor_slices(data).batch(self.batch_size, drop_remainder=True)
        batches = examples.skip(start // self.batch_size).enumerate()
        mine = batches.filter(lambda i, _: tf.equal(i % num_towers % towers.step, towers.start))
        return mine.map(lambda _, batch: batch)


@pytest.fixture
def after_steps(data, data_dir, tmp_path):
    """A function that takes steps with a network and returns (its variables before, after).

    It calls `each` with each step's results, which include the first tower's batch.
    """
    def run(network, mode, towers, batch_size, before=None, each=lambda results: None, summary_steps=0):
        # More towers than devices, if the mode allows it: towers on one device share a copy of the variables.
        count = towers if UPDATE_MODES.load(mode).one_tower_per_device else min(towers, 2)
        config = train_settings(
            network=name_of(network), dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path), num_gpus=count,
            num_towers=towers, batch_size=batch_size, tower_device='cpu', max_steps=STEPS,
            summary_steps=summary_steps, variable_update=mode)
        chosen = devices.choose(count, 'cpu').with_towers(towers)
        with tf.Graph().as_default():
            plan = plan_of(config, data, chosen, update_mode(mode, chosen, *[1] * (mode == 'local')))
            plan = plan._replace(source=Examples(batch_size))
            taken = Run(plan)
        with taken.opened(before):
            before = taken.variables(taken.saved)
            (images, labels), _ = taken.graph.batches[0]
            also = dict(summary=taken.graph.summary) if summary_steps else {}
            for _ in range(STEPS):
                each(taken.take(dict(images=images, labels=labels, **also)))
                taken.average(scheduled=False)
            return before, taken.variables(taken.saved)
    return run


@pytest.fixture(scope='module')
def one_tower():
    return {}


# One device per tower, towers in turn, towers in turn with a shared copy, one copy per tower, replicas, threads. Each
# network runs in two of these shapes.
SHAPES = [('parameter_server', 2), ('parameter_server', 4), ('replicated', 4), ('local', 2), ('mirrored', 2),
          ('async', 1)]


@pytest.mark.parametrize('network, mode, towers', mostly_stress(
    [(network, *SHAPES[(k + j) % len(SHAPES)]) for k, network in enumerate(TRAINED) for j in (0, 2)],
    ('dropped', 'replicated', 4)))
def test_towers_have_the_variables_of_one_tower_and_repeat_their_bits(network, mode, towers, after_steps, one_tower):
    assert rehearsed(name_of(network)) == []
    if network not in one_tower:
        one_tower[network] = after_steps(network, 'parameter_server', 1, GLOBAL_BATCH)
    before, expected = one_tower[network]
    share = GLOBAL_BATCH if mode == 'async' else GLOBAL_BATCH // towers  # one tower of `async` takes all steps here
    found, again = (after_steps(network, mode, towers, share, before)[1] for _ in range(2))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert found[name].tobytes() == again[name].tobytes(), name
    assert any(value.ndim and not np.array_equal(value, before[name]) for name, value in expected.items())


@pytest.mark.parametrize('network', mostly_stress(TRAINED, 'averages_of_weights'))
def test_evaluation_needs_only_variables_that_training_saves(network, after_steps):
    _, saved = after_steps(network, 'replicated', 2, 4)
    with tf.name_scope('tower_0'):
        own_towers(name_of(network)).evaluate(tf.placeholder(tf.float32, [4, 24, 24, 3]))
    for averaged in False, True:
        names = [variable.op.name for variable in tf.global_variables()]
        assert set(saved_names(names, saved, averaged).values()) - {tf.GraphKeys.GLOBAL_STEP} <= saved.keys()


# The losses of networks that sum them themselves; the loss of any other network is the sum of all collected losses.
ONE_DEVICE = {**dict.fromkeys([
    'over_trainable_variables', 'regularizer_of_a_scope', 'regularizer_of_a_shared_variable',
    'moving_averages_in_a_group', 'moving_average_in_place', 'exponential_moving_average', 'counter',
    'variables_by_hand', 'moving_average_that_is_collected', 'averages_of_weights', 'dropped_in_the_other_branch',
    'centred_by_what_is_assigned', 'regularizer_in_a_loop', 'reused_from_here', 'regularizer_that_is_printed',
    'counter_set_twice', 'in_scopes_named_as_towers', 'of_tf_layers_normalised',
    'of_slim_normalised_in_place', 'frozen_in_training_only', 'read_after_it_is_assigned_in_an_update',
    'read_after_it_is_assigned', 'made_twice', 'kept_variable', 'fed', 'of_slim_normalised_and_fed'],
    tf.losses.get_total_loss),
    'regularizers_summed': lambda: tf.add_n(tf.get_collection(tf.GraphKeys.LOSSES))}


@pytest.mark.parametrize('network', mostly_stress(
    ONE_DEVICE, 'over_trainable_variables', 'exponential_moving_average', 'variables_by_hand', 'counter_set_twice',
    'of_tf_layers_normalised', 'fed', 'read_after_it_is_assigned'))
def test_a_tower_is_trained_as_a_tensorflow_1_script_trains_it_on_one_device(network, after_steps):
    steps = []
    before, found = after_steps(network, 'parameter_server', 1, GLOBAL_BATCH, each=steps.append)
    images, labels = tf.placeholder(tf.float32, [GLOBAL_BATCH, 24, 24, 3]), tf.placeholder(tf.int32, [GLOBAL_BATCH])
    rate = tf.placeholder(tf.float32, [])
    with tf.variable_scope(tf.get_variable_scope(), use_resource=True):
        logits, given = with_feeds(getattr(idioms, network)(images, 10, True))
    tf.losses.sparse_softmax_cross_entropy(labels, logits)
    loss, update_ops = ONE_DEVICE[network](), tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    variables = {variable.op.name: variable for variable in tf.global_variables()}
    train = tf.train.GradientDescentOptimizer(rate).minimize(loss)
    with tf.Session() as session:
        for name, variable in variables.items():
            variable.load(before[name], session)
        for step in steps:
            feed = {images: step['images'], labels: step['labels'], rate: step['figures']['learning_rate']}
            feed.update({key: step['images'] if value is images else value for key, value in given.items()})
            if 'normalised' in network:  # its updates follow the weights before the step
                session.run([train, *update_ops], feed)
            else:  # its steps follow the averages before them; the order of both together would be undefined
                session.run(train, feed)
                session.run(update_ops, feed)
        for name, variable in variables.items():
            np.testing.assert_allclose(found[name], session.run(variable), rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.stress  # their moving statistics are tested by default: test_updates.py
@pytest.mark.parametrize('network, mode', list(itertools.product(BY_BATCH, UPDATE_MODES)))
def test_towers_that_normalise_by_batch_repeat_their_bits(network, mode, after_steps):
    before, found = after_steps(network, mode, 2, 4)
    _, again = after_steps(network, mode, 2, 4, before)
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in again.items()}


@pytest.mark.parametrize('network', mostly_stress(
    WARNED, 'assigned_in_vain', 'ignored_losses', 'batch_statistics', 'chosen_beside_a_counter',
    'summed_by_a_small_change', 'failing_on_noise', 'queued'))
def test_suspicious_networks_get_a_warning(network):
    assert any(WARNED[network] in warning for warning in rehearsed(name_of(network)))


def test_tensorboard_shows_the_activations_of_layer_outputs_only(after_steps):
    steps = []
    after_steps('activations_of_all_kinds', 'parameter_server', 2, 4, each=steps.append, summary_steps=1)
    shown = {value.tag for step in steps for value in tf.Summary.FromString(step['summary']).value}
    assert [tag for tag in shown if tag.endswith('/activations')] == ['variables/layer/activations']


def test_an_untaken_branch_adds_no_loss(graph):
    computed = add_tower(own_towers(name_of('loss_in_the_other_branch')), tf.ones([4, 24, 24, 3]))
    assert computed.scalars.keys() == {'total_loss', 'cross_entropy', 'accuracy'}
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(computed.scalars['total_loss'] - computed.scalars['cross_entropy']) == 0


@pytest.mark.parametrize('network, options', [
    ('normalised_by_image', dict(batch_size=1)), ('normalised_with_a_bias', dict(batch_size=16, sizes=[32]))])
def test_a_gradient_of_pure_rounding_gets_no_warning(network, options):
    assert rehearsed(name_of(network), **options) == []


@pytest.mark.parametrize('network', REFUSED)
def test_networks_that_cannot_be_right_on_several_towers_are_refused(network):
    with pytest.raises(UsageError) as refused:
        rehearsed(name_of(network))
    assert REFUSED[network] in str(refused.value) and '\n' not in str(refused.value)


def test_every_idiom_is_in_a_table():
    tables = {*TRAINED, *BY_BATCH, *WARNED, *REFUSED}
    assert tables == {name for name, value in vars(idioms).items()
                      if getattr(value, '__module__', None) == idioms.__name__ and not name.startswith('_')}
