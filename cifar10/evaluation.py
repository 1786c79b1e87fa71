"""The evaluation graph and its passes: precision of each new checkpoint, every example counted once.

Knows checkpoints, data and networks; nothing of towers, update modes or training.
"""
import datetime
import os
import time

import tensorflow.compat.v1 as tf

from cifar10 import checkpoint, devices, inputs, networks, records, run_dir, schedule, summaries
from cifar10.config import DATASETS, NETWORKS
from cifar10.console import RunError, UsageError, reason


def evaluate(config):
    """Evaluates the newest checkpoint, and unless `config.run_once`, each newer one as it appears.

    Args:
      config: a `config.EvalConfig`.

    Raises:
      UsageError: something the config asks for cannot be, or a checkpoint is not of the network.
      RunError: `run_once` and there is no checkpoint that can be read, or an evaluation failed.
    """
    run_dir.check_eval_dir(config.eval_dir, config.checkpoint_dir)
    device = devices.choose(1, config.tower_device)
    devices.claim(device)
    _wait_for_first(config)
    data, network = _run_of(config)
    try:
        with tf.Graph().as_default() as graph:
            evaluation = Evaluation(config, data, network, device.towers[0])
            events = summaries.Events(config.eval_dir)
            events.begin(graph)
            with tf.Session(config=devices.session_config(device)) as session:
                session.run(evaluation.read)
                _watch(config, lambda prefix: evaluation.run(session, prefix, events))
    except tf.errors.OpError as error:
        raise RunError(reason(error)) from error


def _wait_for_first(config):
    if not run_dir.checkpoints(config.checkpoint_dir):
        if os.path.exists(config.checkpoint_dir + '.index'):
            raise UsageError('--checkpoint_dir=%s is a checkpoint; give the directory that it is in'
                             % config.checkpoint_dir)
        if config.run_once:
            raise RunError('no checkpoint in --checkpoint_dir=%s; train first, or name the train_dir of a run'
                           % config.checkpoint_dir)
        print('waiting for the first checkpoint in %s' % config.checkpoint_dir)
    while not run_dir.checkpoints(config.checkpoint_dir):
        time.sleep(1)


def _run_of(config):
    """Returns (Records, network) of the run in checkpoint_dir; the classic scripts left no settings."""
    run = run_dir.read_config(config.checkpoint_dir) or {}
    dataset = run.get('dataset', config.dataset or 'cifar10')
    if config.dataset not in (None, dataset):
        raise UsageError('--dataset=%s, but the run in %s was trained on %s; leave --dataset out'
                         % (config.dataset, config.checkpoint_dir, dataset))
    network = run.get('network', NETWORKS[0])
    if dataset not in DATASETS or network not in NETWORKS:
        raise UsageError('the run in %s has dataset=%s and network=%s, which this version does not know'
                         % (config.checkpoint_dir, dataset, network))
    data = records.find(dataset, config.data_dir or run.get('data_dir', '/tmp/cifar10_data'),
                        records.TEST_FILES if config.eval_data == 'test' else records.TRAIN_FILES)
    if config.num_examples and config.num_examples > data.count:
        raise UsageError('--num_examples=%d, but there are %d %s images; leave it out to take all'
                         % (config.num_examples, data.count, config.eval_data))
    print('data       %s' % data)
    return data, network


def _watch(config, evaluate_one):
    """Calls `evaluate_one` with the newest readable checkpoint, then with each newer one; with none twice.

    Args:
      config: a `config.EvalConfig`.
      evaluate_one: function prefix -> bool; False: it was rotated away, and a newer one is there.
    """
    done = None
    while True:
        prefix = checkpoint.newest(config.checkpoint_dir)
        # A new run may reuse the name, so the time counts too.
        look = (prefix, _modified(prefix)) if prefix else None
        if look and look != done:
            if not evaluate_one(prefix):
                continue
            done = look
        if config.run_once:
            if not done:
                raise RunError('no checkpoint in --checkpoint_dir=%s can be read' % config.checkpoint_dir)
            return
        time.sleep(config.eval_interval_secs)


def _modified(prefix):
    try:
        return os.path.getmtime(prefix + '.index')
    except OSError:
        return None  # rotated away this moment


class Evaluation:
    """The evaluation graph, built in the current default graph.

    Attributes:
      read: the operation that reads the data; once a session.
    """

    def __init__(self, config, data, network, device):
        self._num_examples = config.num_examples or data.count
        self._batches = -(-self._num_examples // config.batch_size)
        with tf.device('/cpu:0'):
            memory, self.read = inputs.load(data)
            iterator, self._start = inputs.eval_batches(memory, self._num_examples, config.batch_size)
            images, labels = iterator.get_next()
        with tf.device(device):
            logits = networks.get(network)(images)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
            # The whole of a batch in two numbers, so that the result does not depend on the batches.
            correct = tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels)
            self._correct = tf.reduce_sum(tf.cast(correct, tf.int32))
            self._loss = tf.reduce_sum(tf.cast(losses, tf.float64))
        self._restored = schedule.moving_averages().variables_to_restore() if config.use_ema else {
            variable.op.name: variable for variable in tf.global_variables()}
        with tf.device('/cpu:0'):
            self._saver = tf.train.Saver(self._restored)

    def run(self, session, prefix, events):
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
        correct, loss = self.results(session)
        precision = correct / self._num_examples
        print('%s: precision @ 1 = %.3f (%d of %d), step %d' % (
            datetime.datetime.now(), precision, correct, self._num_examples, step))
        results = {'Precision @ 1': precision, 'cross_entropy': loss / self._num_examples}
        events.add(summaries.scalars(**results), step)
        return True

    def results(self, session):
        """Makes one pass; returns (how many examples are right, the sum of their cross entropies)."""
        session.run(self._start)
        results = [session.run([self._correct, self._loss]) for _ in range(self._batches)]
        return tuple(sum(result) for result in zip(*results))

    def _check(self, prefix):
        misfit = checkpoint.misfit(prefix, self._restored)
        if misfit:
            plain = {name.removesuffix('/ExponentialMovingAverage'): v for name, v in self._restored.items()}
            of_another = checkpoint.misfit(prefix, plain)
            raise UsageError('%s %s; %s' % (
                prefix, misfit, 'it is of another network' if of_another else 'use --use_ema=false'))
