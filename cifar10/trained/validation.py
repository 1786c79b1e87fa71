"""Validation: the test images between two steps of a run, in its process and on its devices.

It has its own graph and session, into which the variables are copied, so that it does not affect the run's steps.
"""
import tensorflow.compat.v1 as tf

from cifar10.data import records
from cifar10.optim.averages import saved_names
from cifar10.parallel import devices
from cifar10.parallel.session_config import session_config
from cifar10.recipe import Recipe
from cifar10.run import summaries
from cifar10.run.async_workers import AsyncWorkersHook
from cifar10.run.hooks import ProgressHook, StepHook
from cifar10.run.metrics import EVAL, Metrics
from cifar10.trained.evaluator import Evaluator, Result
from cifar10.trained.report import scalars_of

_BATCH = 500


class Validation:
    """Evaluates values of variables.

    Args:
      recipe: of the run.
      data: the images.
      local: devices of this process.
      use_ema: whether the values are the moving averages.
    """

    def __init__(self, recipe: Recipe, data: records.Records, local: devices.Devices, use_ema: bool):
        with tf.Graph().as_default() as graph:
            self._evaluator = Evaluator(data, recipe, local.towers, _BATCH)
            variables = saved_names(use_ema)
            with tf.device('/cpu:0'):
                self._values = {name: tf.placeholder(variable.dtype.base_dtype, variable.shape)
                                for name, variable in variables.items()}
                self._assign = [variable.assign(self._values[name]).op for name, variable in variables.items()]
        self._session = tf.Session(graph=graph, config=session_config(local))
        self._session.run(self._evaluator.read)

    def reads(self) -> dict[str, tf.Tensor]:
        """Returns the values of the current graph's variables that are needed, by their names in a checkpoint."""
        by_name = {variable.op.name: variable for variable in tf.global_variables()}
        with tf.name_scope('validation'):
            return {name: by_name[name].read_value() for name in self._values}

    def __call__(self, values: dict) -> Result:
        """Returns the Result with these values: what a session gave for `reads`."""
        self._session.run(self._assign, {self._values[name]: value for name, value in values.items()})
        return self._evaluator.run(self._session)

    def close(self) -> None:
        """Frees the memory."""
        self._session.close()


def hooks(validation: Validation | None, *arguments) -> list:
    """Returns the ValidationHook of a run with a validation, none of one without; arguments as the hook has them."""
    return [ValidationHook(validation, *arguments)] if validation else []


class ValidationHook(StepHook):
    """Evaluates the variables every `every` steps and after the last one.

    Args:
      validation: the evaluation.
      train_step: int64 tensor, global_step after the update.
      every, last_step: int.
      progress: prints the line.
      events: TensorBoard's file.
      metrics: the file of records.
      workers: threads that must not step while the variables are read.
    """

    def __init__(self, validation: Validation, train_step: tf.Tensor, every: int, last_step: int,
                 progress: ProgressHook, events: summaries.Events, metrics: Metrics, workers: AsyncWorkersHook):
        super().__init__(train_step)
        self._validation, self._every, self._last_step = validation, every, last_step
        self._progress, self._events, self._metrics, self._workers = progress, events, metrics, workers
        self._values = validation.reads()

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._done = None  # the step that was evaluated last

    def after_step(self, context, step):
        if self.due(self._every) or step >= self._last_step:
            if not self._evaluate(context.session):
                context.request_stop()

    def _evaluate(self, session):
        """Evaluates the variables as they are; returns whether anybody reads the line about it."""
        with self._workers.paused():
            step, values = session.run([self._global_step, self._values])
        if step == self._done:
            return True
        self._done, result = step, self._validation(values)
        self._events.add(summaries.scalars(scalars_of(result)), step)
        self._metrics.add(EVAL, step, **result.figures)
        return self._progress.say(f'step {step}: {result}')

    def end(self, session):
        if session.run(self._global_step) >= self._last_step:  # which another tower's thread may have taken
            self._evaluate(session)
        self._validation.close()
