"""Provides the parts of `tf.estimator` that a model function needs; TensorFlow removed it in 2.16.

A model function returns an EstimatorSpec. Calls of other names, such as RunConfig, get an error.
"""
from typing import Any, NamedTuple


class ModeKeys:
    """Names the modes of a model function."""
    TRAIN, EVAL, PREDICT, INFER = 'train', 'eval', 'infer', 'infer'


class EstimatorSpec(NamedTuple):
    """Holds the result of a model function: tensors and operations, as tf.estimator.EstimatorSpec did."""
    mode: str
    predictions: Any = None
    loss: Any = None
    train_op: Any = None
    eval_metric_ops: Any = None
    export_outputs: Any = None
    training_chief_hooks: Any = None
    training_hooks: Any = None
    scaffold: Any = None
    evaluation_hooks: Any = None
    prediction_hooks: Any = None

    def as_estimator_spec(self) -> 'EstimatorSpec':
        return self


def tpu_estimator_spec(mode: str, predictions: Any = None, loss: Any = None, train_op: Any = None,
                       eval_metrics: Any = None, export_outputs: Any = None, scaffold_fn: Any = None,
                       host_call: Any = None, **hooks: Any) -> EstimatorSpec:
    """Stands in for tf.estimator.tpu.TPUEstimatorSpec; returns the equivalent EstimatorSpec."""
    metrics, tensors = eval_metrics if eval_metrics and mode == ModeKeys.EVAL else (dict, {})
    return EstimatorSpec(mode, predictions, loss, train_op,
                         metrics(**tensors) if isinstance(tensors, dict) else metrics(*tensors),
                         export_outputs, scaffold=scaffold_fn, **hooks)


class _Missing(type):
    """Metaclass of placeholders for missing names: they may be named and subclassed, but not called."""

    def __getattr__(cls, name):
        if name.startswith('__'):
            raise AttributeError(name)
        return missing(f'{cls.__name__}.{name}')

    def __call__(cls, *arguments, **options):
        raise AttributeError(f'tf.{cls.__name__} was removed from TensorFlow; leave it out, because this program '
                             'replaces the Estimator (EstimatorSpec, ModeKeys and export still work)')


def missing(name: str) -> type:
    """Returns a placeholder for `tf.<name>`, which raises an error when it is called."""
    return _Missing(name, (), {})


class _Output(NamedTuple):
    """An entry of export_outputs. Nothing reads it: an exported model has the program's own outputs."""
    outputs: Any = None
    classes: Any = None


class Estimator:
    """Replaces the module `tf.estimator` and its counterpart for TPUs."""
    EstimatorSpec, ModeKeys, TPUEstimatorSpec = EstimatorSpec, ModeKeys, staticmethod(tpu_estimator_spec)

    class export:
        PredictOutput = ClassificationOutput = RegressionOutput = _Output

    def __getattr__(self, name):
        import tensorflow.compat.v1 as tf
        if name.startswith('__'):
            raise AttributeError(name)
        if hasattr(tf.tpu, name):  # such as CrossShardOptimizer, which TensorFlow 1 files import from here
            return getattr(tf.tpu, name)
        return self if name == 'tpu' else missing(f'estimator.{name}')
