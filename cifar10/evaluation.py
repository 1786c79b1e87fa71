"""Evaluation: the precision of the newest checkpoint, with every example counted once."""
import datetime
import os
import time

import tensorflow.compat.v1 as tf

from cifar10.config import DATA_DIR, TEST_FRACTION, EvalConfig
from cifar10.data import pipeline, records
from cifar10.data.views import average, views
from cifar10.errors import RunError, UsageError, reason
from cifar10.networks import classifier
from cifar10.optim.averages import moving_averages
from cifar10.parallel import devices
from cifar10.presets import PRESETS
from cifar10.recipe import Recipe
from cifar10.registry import AUGMENTATIONS, DATASETS, NETWORKS
from cifar10.run import checkpoint, summaries
from cifar10.run.train_dir import TrainDir, check_eval_dir


def evaluate(config: EvalConfig) -> None:
    """Evaluates the newest checkpoint, and unless `config.run_once`, each newer one as it appears.

    Args:
      config: a `config.EvalConfig`.

    Raises:
      UsageError: invalid configuration, or a checkpoint of another network.
      RunError: `run_once` and there is no checkpoint that can be read, or an evaluation failed.
    """
    check_eval_dir(config.eval_dir, config.checkpoint_dir)
    device = devices.choose(1, config.tower_device)
    devices.claim(device)
    directory = TrainDir(config.checkpoint_dir)
    _wait_for_first(directory, config.run_once)
    run = _settings(directory, config)
    data = _data_of(run, config)
    recipe = Recipe(run, len(data.classes))
    use_ema = run['moving_averages'] if config.use_ema is None else config.use_ema
    averaging = config.test_time_averaging
    if averaging is None:
        averaging = recipe.augmentation.test_time_averaging
    try:
        with tf.Graph().as_default() as graph:
            evaluation = Evaluation(config, data, recipe, device.towers[0], use_ema, averaging)
            events = summaries.Events(config.eval_dir)
            events.begin(graph)
            with tf.Session(config=devices.session_config(device)) as session:
                session.run(evaluation.read)
                _watch(directory, config, lambda prefix: evaluation.run(session, prefix, events))
    except tf.errors.OpError as error:
        raise RunError(reason(error)) from error


def _wait_for_first(directory, run_once):
    if not directory.checkpoints():
        if os.path.exists(directory.path + '.index'):
            raise UsageError(f'--checkpoint_dir={directory.path} is a checkpoint; give the directory that it is in')
        if run_once:
            raise RunError(f'no checkpoint in --checkpoint_dir={directory.path}; train first, or name the train_dir of '
                           'a run')
        print(f'waiting for the first checkpoint in {directory.path}')
    while not directory.checkpoints():
        time.sleep(1)


def _settings(directory, config):
    """Returns the settings of the run to be evaluated, with what the user says has moved."""
    # The classic scripts left no settings.
    run = {**PRESETS['classic'], 'dataset': config.dataset or next(iter(DATASETS)), 'test_fraction': TEST_FRACTION,
           **(directory.settings() or {})}
    for name, known in (('dataset', DATASETS), ('network', NETWORKS), ('augmentation', AUGMENTATIONS)):
        given = getattr(config, name, None)
        if given and known.is_own(given) and known.is_own(run[name]):
            run[name] = given
        if given not in (None, run[name]):
            raise UsageError(f'--{name}={given}, but the run in {config.checkpoint_dir} has {name}={run[name]}; leave '
                             f'--{name} out')
        if run[name] not in known:
            raise UsageError(f'the run in {config.checkpoint_dir} has {name}={run[name]}, which this version does not '
                             'know')
    return run


def _data_of(run, config):
    """Returns the Records to evaluate a run on, given its settings."""
    data = records.find(run['dataset'], config.data_dir or run.get('data_dir', DATA_DIR),
                        records.TEST if config.eval_data == 'test' else records.TRAIN, run['test_fraction'])
    if config.num_examples and config.num_examples > data.count:
        raise UsageError(f'--num_examples={config.num_examples}, but there are {data.count} {config.eval_data} '
                         'images; leave it out to take all')
    print(f'data       {data}')
    return data


def _watch(directory, config, evaluate_one):
    """Calls `evaluate_one` with the newest readable checkpoint, then with each newer one; with none twice.

    Args:
      directory: a TrainDir.
      config: a `config.EvalConfig`.
      evaluate_one: function prefix -> bool; False: it was rotated away, and a newer one is there.
    """
    done = None
    while True:
        prefix = checkpoint.newest(directory)
        # A new run may reuse the name, so the time counts too.
        look = (prefix, _modified(prefix)) if prefix else None
        if look and look != done:
            if not evaluate_one(prefix):
                continue
            done = look
        if config.run_once:
            if not done:
                raise RunError(f'no checkpoint in --checkpoint_dir={config.checkpoint_dir} can be read')
            return
        time.sleep(config.eval_interval_secs)


def _modified(prefix):
    try:
        return os.path.getmtime(prefix + '.index')
    except OSError:
        return None  # rotated away this moment


class Evaluation:
    """The evaluation graph, built in the current default graph.

    Args:
      config: how many images, in which batches.
      data: the images.
      recipe: of the run.
      device: computes the network.
      use_ema: whether to restore the moving averages of the variables.
      averaging: whether to average the predictions for several views of an image, too.

    Attributes:
      read: the operation that reads the data; once a session.
    """

    def __init__(self, config: EvalConfig, data: records.Records, recipe: Recipe, device: str, use_ema: bool = True,
                 averaging: bool = False):
        self._num_examples = config.num_examples or data.count
        self._batches = -(-self._num_examples // config.batch_size)
        with tf.device('/cpu:0'):
            memory, self.read = pipeline.load(data)
            iterator, self._start = pipeline.eval_batches(
                memory, recipe.augmentation, self._num_examples, config.batch_size)
            images, labels = iterator.get_next()
        with tf.device(device):
            logits = recipe.inference(views(images) if averaging else images, [device])
            plain = logits[:tf.shape(labels)[0]]
            # The whole of a batch in a few numbers, so that the result does not depend on the batches.
            self._results = [_right(plain, labels),
                             tf.reduce_sum(tf.cast(classifier.cross_entropies(plain, labels), tf.float64))]
            if averaging:
                self._results.append(_right(average(logits), labels))
        self._restored = moving_averages().variables_to_restore() if use_ema else {
            variable.op.name: variable for variable in tf.global_variables()}
        with tf.device('/cpu:0'):
            self._saver = tf.train.Saver(self._restored)

    def run(self, session: tf.Session, prefix: str, events: summaries.Events) -> bool:
        """Makes one pass over the examples with one checkpoint, prints the result and writes it for TensorBoard.

        Returns:
          Whether it did; not if the checkpoint was rotated away before it was read.
        """
        try:
            self._check(prefix)
            step = checkpoint.saved_step(prefix)
            self._saver.restore(session, prefix)
        except (tf.errors.OpError, ValueError):
            if not os.path.exists(prefix + '.index'):
                return False
            raise
        correct, loss, *averaged = self.results(session)
        precision = correct / self._num_examples
        results = {'Precision @ 1': precision, 'cross_entropy': loss / self._num_examples}
        also = ''
        if averaged:
            results['Precision @ 1, test-time averaging'] = averaged[0] / self._num_examples
            also = f' {averaged[0] / self._num_examples:.3f} with test-time averaging,'
        print(f'{datetime.datetime.now()}: precision @ 1 = {precision:.3f} ({correct} of {self._num_examples}),{also} '
              f'step {step}')
        events.add(summaries.scalars(**results), step)
        return True

    def results(self, session: tf.Session) -> tuple:
        """Makes one pass; returns (how many examples are right, the sum of their cross entropies).

        With test-time averaging, a third number: how many are right with it.
        """
        session.run(self._start)
        results = [session.run(self._results) for _ in range(self._batches)]
        return tuple(sum(result) for result in zip(*results))

    def _check(self, prefix):
        found = checkpoint.incompatibility(prefix, self._restored)
        if found:
            plain = {name.removesuffix('/ExponentialMovingAverage'): v for name, v in self._restored.items()}
            of_another = checkpoint.incompatibility(prefix, plain)
            remedy = 'it belongs to another network' if of_another else 'use --use_ema=false'
            raise UsageError(f'{prefix} {found}; {remedy}')


def _right(logits, labels):
    return tf.reduce_sum(tf.cast(classifier.correct(logits, labels), tf.int32))
