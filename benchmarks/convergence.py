#!/usr/bin/env python3
"""Does waiting for all towers pay? Test accuracy of synchronous and asynchronous training.

    python benchmarks/convergence.py --data_dir=/tmp/cifar10_data --images=76800 --seeds=3

Trains the classic network with 4 towers of 32, with `parameter_server` and with `async`, with all towers
alike and with the last tower slowed down, and evaluates each run after equal images and after equal
seconds (those of the faster mode's whole run). Prints a Markdown table of means with their spread over
the seeds, and writes JSON. Each run is a process of its own.
"""
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from benchmarks import harness  # noqa: E402
from cifar10 import console, flags  # noqa: E402
from cifar10.console import UsageError  # noqa: E402

MODES = ('parameter_server', 'async')
TOWERS, BATCH = 4, 32


def slowed(update_class, seconds):
    """Returns a subclass of an update mode whose last tower pauses so long before each step."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    def pause():
        time.sleep(seconds)
        return np.float32(0)

    class Slowed(update_class):
        def build(self, tower_fn, make_optimizer, global_step):
            def tower(k, scope):
                if k < len(self.devices) - 1:
                    return tower_fn(k, scope)
                with tf.device('/cpu:0'):
                    paused = tf.numpy_function(pause, [], tf.float32, stateful=True)
                with tf.control_dependencies([paused]):
                    return tower_fn(k, scope)
            return super().build(tower, make_optimizer, global_step)
    return Slowed


def run(given, mode, pause, seed):
    """Trains once, in this process, evaluating the moving averages now and then with the clock stopped.

    Returns:
      A list of (images, seconds of training, test accuracy).
    """
    console.start_tensorflow()
    import tensorflow.compat.v1 as tf

    from cifar10 import devices, hooks, inputs, modes, networks, records, training
    from cifar10.config import TrainConfig
    per_step = BATCH if mode == 'async' else BATCH * TOWERS
    config = TrainConfig(dataset=given.dataset, data_dir=given.data_dir, num_gpus=TOWERS, batch_size=BATCH, seed=seed,
                         max_steps=given.images // per_step, variable_update=mode, tower_device='cpu')
    towers = devices.choose(TOWERS, 'cpu')
    devices.claim(towers)
    tf.set_random_seed(seed)
    update = slowed(modes.MODES[mode], pause)(towers.towers) if pause else modes.MODES[mode](towers.towers)
    built = training.Training(config, records.find(config.dataset, config.data_dir), towers, update)
    test = records.find(config.dataset, config.data_dir, records.TEST_FILES)
    memory, read = inputs.load(test)
    iterator, start = inputs.eval_batches(memory, test.count, 500)
    images, labels = iterator.get_next()
    by_name = {variable.op.name: variable for variable in tf.global_variables()}

    def averaged(getter, name, *arguments, **keywords):
        return by_name[name + '/ExponentialMovingAverage']
    with tf.variable_scope(tf.get_variable_scope(), reuse=True, custom_getter=averaged):
        logits = networks.get('classic')(images)
    right = tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), labels), tf.int32))
    drivers = hooks.DriverHook(built.more_steps)
    scaffold = tf.train.Scaffold(local_init_op=tf.group(built.initialise, read))
    curve = []
    with tf.train.MonitoredSession(tf.train.ChiefSessionCreator(scaffold, config=devices.session_config(towers)),
                                   hooks=[drivers]) as session:
        def evaluate(step_context):
            step_context.session.run(start)
            return sum(step_context.session.run(right) for _ in range(-(-test.count // 500))) / test.count
        done, trained, begin = 0, 0.0, None
        while done < config.max_steps:
            before = done
            try:
                done = int(session.run(built.step))
            except tf.errors.OutOfRangeError:  # another tower takes the last batch
                drivers.join()
                done = config.max_steps
            if begin is None:
                begin = time.perf_counter()  # the first step is a warm-up
            if done * per_step // given.every > before * per_step // given.every or done == config.max_steps:
                with drivers.paused():
                    trained += time.perf_counter() - begin
                    accuracy = session.run_step_fn(evaluate)
                    curve.append((done * per_step, trained, float(accuracy)))
                    begin = time.perf_counter()
    return curve


def at(curve, column, value):
    """Returns the accuracy of a curve where its images (column 0) or seconds (1) are a value, interpolated."""
    import numpy as np
    return float(np.interp(value, [point[column] for point in curve], [point[2] for point in curve]))


def report(results):
    """Returns the lines of a Markdown table of results {(mode, slow): [curve]}, every curve of as many images."""
    lines = ['| towers | mode | images/s | after equal images | after equal seconds |', '|---|---|---|---|---|']
    for slow in (False, True):
        seconds = min(curve[-1][1] for mode in MODES for curve in results[mode, slow])
        for mode in MODES:
            curves = results[mode, slow]
            cells = []
            for column, value in ((0, curves[0][-1][0]), (1, seconds)):
                values = [100 * at(curve, column, value) for curve in curves]
                cells.append('%.1f%% (%.1f-%.1f)' % (statistics.mean(values), min(values), max(values)))
            rate = statistics.median(curve[-1][0] / curve[-1][1] for curve in curves)
            lines.append('| %s | `%s` | %.0f | %s | %s |' % (
                'one slowed' if slow else 'alike', mode, rate, cells[0], cells[1] + ' of %.0f s' % seconds))
    return lines


def main():
    """Runs all combinations, seeds interleaved, and prints the table."""
    parser = harness.parser(__doc__.splitlines()[0])
    parser.add_argument('--images', type=flags.at_least(TOWERS * BATCH), default=76800, metavar='N',
                        help='of one run (default: %(default)s)')
    parser.add_argument('--every', type=flags.at_least(1), default=6400, metavar='N',
                        help='images between two evaluations (default: %(default)s)')
    parser.add_argument('--seeds', type=flags.at_least(1), default=3, metavar='N', help='(default: %(default)s)')
    parser.add_argument('--pause', type=float, default=0.1, metavar='SECONDS',
                        help='by which the slowed tower is slower a step (default: %(default)s)')
    parser.add_argument('--one', nargs=3, metavar=('MODE', 'PAUSE', 'SEED'), help='one run; prints its curve as JSON')
    given = parser.parse_args()
    if given.images % (TOWERS * BATCH):
        raise UsageError('--images=%d is not a multiple of %d, four batches' % (given.images, TOWERS * BATCH))
    harness.check(given)
    if given.one:
        print(json.dumps(run(given, given.one[0], float(given.one[1]), int(given.one[2]))))
        return
    results = {(mode, slow): [] for mode in MODES for slow in (False, True)}
    for seed in range(given.seeds):
        for (mode, slow), curves in results.items():
            output = harness.output_of(
                'benchmarks/convergence.py', '--data_dir=' + given.data_dir, '--dataset=' + given.dataset,
                '--images=%d' % given.images, '--every=%d' % given.every,
                '--one', mode, str(given.pause if slow else 0), str(seed))
            curves.append(json.loads(output.splitlines()[-1]))
            print('seed %d, %s%s: %.0f s, %.1f%%' % (seed, mode, ', one slowed' * slow, *curves[-1][-1][1:2],
                                                     100 * curves[-1][-1][2]), file=sys.stderr, flush=True)
    if given.json:
        harness.write_json(given.json, flags=vars(given), curves={
            '%s%s' % (mode, ', one slowed' * slow): curves for (mode, slow), curves in results.items()})
    print('\n'.join(report(results)))


if __name__ == '__main__':
    sys.exit(console.run(main))
