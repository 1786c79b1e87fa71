#!/usr/bin/env python3
"""Does waiting for all towers pay? Test accuracy of synchronous and asynchronous training.

    python benchmarks/convergence.py --data_dir=/tmp/cifar10_data --images=76800 --seeds=3

Trains the classic network with 4 towers of 32, with `parameter_server` and with `async`, with all towers
alike and with the last tower slowed down, and evaluates each run after equal images and after equal
seconds (those of the faster mode's whole run). Prints a Markdown table of means with their spread over
the seeds, and writes JSON. Each run is a process of its own.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, ROOT)

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


def run(flags, mode, pause, seed):
    """Trains once, in this process, evaluating the moving averages now and then with the clock stopped.

    Returns:
      A list of (images, seconds of training, test accuracy).
    """
    from cifar10 import console
    console.start_tensorflow()
    import tensorflow.compat.v1 as tf

    from cifar10 import devices, hooks, inputs, modes, networks, records, training
    from cifar10.config import TrainConfig
    per_step = BATCH if mode == 'async' else BATCH * TOWERS
    config = TrainConfig(dataset=flags.dataset, data_dir=flags.data_dir, num_gpus=TOWERS, batch_size=BATCH, seed=seed,
                         max_steps=flags.images // per_step, variable_update=mode, tower_device='cpu')
    towers = devices.choose(TOWERS, 'cpu')
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
            before, done = done, int(session.run(built.step))
            if begin is None:
                begin = time.perf_counter()  # the first step is a warm-up
            if done * per_step // flags.every > before * per_step // flags.every:
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
    """Returns the lines of a Markdown table of results {(mode, slow): [curve]}."""
    lines = ['| towers | mode | images/s | after equal images | after equal seconds |', '|---|---|---|---|---|']
    for slow in (False, True):
        seconds = min(curve[-1][1] for mode in MODES for curve in results[mode, slow])
        images = min(curve[-1][0] for mode in MODES for curve in results[mode, slow])
        for mode in MODES:
            curves = results[mode, slow]
            cells = []
            for column, value in ((0, images), (1, seconds)):
                values = [100 * at(curve, column, value) for curve in curves]
                cells.append('%.1f%% (%.1f-%.1f)' % (statistics.mean(values), min(values), max(values)))
            rate = statistics.median(curve[-1][0] / curve[-1][1] for curve in curves)
            lines.append('| %s | `%s` | %.0f | %s | %s |' % (
                'one slowed' if slow else 'alike', mode, rate, cells[0], cells[1] + ' of %.0f s' % seconds))
    return lines


def main():
    """Runs all combinations, seeds interleaved, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--data_dir', default='/tmp/cifar10_data')
    parser.add_argument('--dataset', default='cifar10', choices=('cifar10', 'shapes'))
    parser.add_argument('--images', type=int, default=76800, help='of one run')
    parser.add_argument('--every', type=int, default=6400, help='images between two evaluations')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--pause', type=float, default=0.1, help='seconds by which the slowed tower is slower')
    parser.add_argument('--json', metavar='FILE')
    parser.add_argument('--one', nargs=3, metavar=('MODE', 'PAUSE', 'SEED'), help='one run; prints its curve as JSON')
    flags = parser.parse_args()
    if flags.one:
        print(json.dumps(run(flags, flags.one[0], float(flags.one[1]), int(flags.one[2]))))
        return
    results = {(mode, slow): [] for mode in MODES for slow in (False, True)}
    for seed in range(flags.seeds):
        for (mode, slow), curves in results.items():
            command = [sys.executable, os.path.abspath(__file__), '--data_dir=' + flags.data_dir,
                       '--dataset=' + flags.dataset, '--images=%d' % flags.images, '--every=%d' % flags.every,
                       '--one', mode, str(flags.pause if slow else 0), str(seed)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            curves.append(json.loads(output.splitlines()[-1]))
    print('\n'.join(report(results)))
    if flags.json:
        with open(flags.json, 'w') as stream:
            json.dump({'%s%s' % (mode, ', one slowed' if slow else ''): curves
                       for (mode, slow), curves in results.items()}, stream)


if __name__ == '__main__':
    main()
