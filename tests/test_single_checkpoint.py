"""--checkpoint: a single checkpoint is evaluated once, classifies and is exported."""
import json
import os
import re
import shutil

import numpy as np
import pytest

from cifar10.base.errors import UsageError
from cifar10.evaluation import classification, evaluation, export
from cifar10.run import metrics
from cifar10.settings.evaluation import eval_settings
from cifar10.settings.training import train_settings
from cifar10.training import trainer
from tests.helpers import checkpoints, mostly_stress, rewrite, tf


@pytest.fixture(scope='module')
def run(tmp_path_factory, data_dir):
    """The train_dir of a run of 40 steps with two checkpoints, of which the older one answers 4 throughout."""
    config = train_settings(dataset='shapes', data_dir=data_dir, train_dir=str(tmp_path_factory.mktemp('run')),
                            batch_size=4, max_steps=2, save_steps=1, tower_device='cpu')
    with tf.Graph().as_default():
        trainer.train(config)
    older, _ = checkpoints(config.run.train_dir)
    average = '/ExponentialMovingAverage'
    rewrite(older, **{'softmax_linear/weights' + average: np.zeros([192, 10], np.float32),
                      'softmax_linear/biases' + average: 9 * np.eye(10, dtype=np.float32)[4]})
    return config.run.train_dir


@pytest.mark.parametrize('suffix', mostly_stress(['', '.index'], ''))
def test_a_single_checkpoint_is_evaluated_once(run, tmp_path, capsys, suffix):
    older = checkpoints(run)[0]
    evaluation.evaluate(eval_settings(checkpoint=older + suffix, eval_dir=str(tmp_path), tower_device='cpu'))
    assert re.search(r'precision @ 1 = .*, step 1$', capsys.readouterr().out, re.M)
    record, = metrics.read(str(tmp_path), metrics.EVAL)
    assert record['step'] == 1


@pytest.mark.stress
def test_a_single_checkpoint_classifies_and_is_exported(run, tmp_path, capsys):
    older = checkpoints(run)[0]
    with tf.Session() as session:
        (tmp_path / 'any.png').write_bytes(session.run(tf.io.encode_png(np.zeros([32, 32, 3], np.uint8))))
    shown = []
    classification.classify(eval_settings(checkpoint=older, image=(str(tmp_path / 'any.png'),), tower_device='cpu'),
                            shown.append)
    fourth = json.loads(open(os.path.join(run, 'config.json')).read())['classes'][4]
    assert f'any.png  {fourth} 0.99' in shown[-1]
    export.export(eval_settings(checkpoint=older, export_dir=str(tmp_path / 'model'), tower_device='cpu'))
    assert f'exported   {older}, step 1, to' in capsys.readouterr().out


def test_what_contradicts_a_single_checkpoint_is_refused_in_a_line(run, tmp_path):
    older, newest = checkpoints(run)
    for flags, part in ((dict(checkpoint_dir=run), 'both say what to evaluate; leave one of them out'),
                        (dict(train_dir=run), 'both say what to evaluate; leave one of them out'),
                        (dict(run_once=False), 'is for the checkpoints of a run, but --checkpoint=')):
        with pytest.raises(UsageError, match=part):
            eval_settings(checkpoint=older, **flags)
    shutil.copy(newest + '.index', tmp_path / 'broken.index')
    for given, part in ((run, f'there is no such checkpoint; give the prefix of one, such as {newest}$'),
                        (older + '0', 'there is no such checkpoint'), (str(tmp_path / 'broken'), 'cannot be read')):
        with pytest.raises(UsageError, match=part) as refused:
            evaluation.evaluate(eval_settings(checkpoint=given, eval_dir=str(tmp_path / 'eval'), tower_device='cpu'))
        assert '\n' not in str(refused.value) and not os.path.exists(tmp_path / 'eval')
