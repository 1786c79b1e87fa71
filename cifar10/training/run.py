"""Takes training steps: the loop and every tool take the same steps through `Run`.

    run = Run(plan)
    with run.opened():
        while run.step < plan.last_step:
            results = run.take()
"""
import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import OF_FIRST_STEP, doing
from cifar10.base.graphs import AVERAGE, LOST, Loader, check_size, seeded_graph
from cifar10.parallel.session_config import refuse_absent, session_config
from cifar10.training import graph
from cifar10.training.plan import Plan


class Run:
    """The graph of a training run and, within `opened`, its session.

    Args:
      is_new: whether to start with initial values; default: whether the plan has no checkpoint.

    Attributes:
      saved: the variables in a checkpoint, by name.
      step: the number of the last step, within `opened`.
    """

    def __init__(self, plan: Plan, is_new: bool | None = None):
        self.plan = plan
        self._session: tf.Session | None = None
        self.step = plan.step
        self._calls: dict[tuple, Callable] = {}  # (thread, further tensors) -> function that takes such a step
        if is_new is None:
            is_new = not plan.checkpoint
        learnt = plan.recipe.learnt(plan.source) if is_new else {}
        with seeded_graph(plan.settings.run.seed) as self._graph, tf.device(plan.devices.home):
            self.graph = graph.build(plan, learnt)
            check_size(plan.settings.recipe.network)
            self.saved = {variable.op.name: variable for variable in tf.global_variables()}
            with plan.mode.scope():
                self._loader = Loader(self.saved)
                with tf.name_scope('read'):
                    self._reads = {name: variable.read_value() for name, variable in self.saved.items()}

    @property
    def session(self) -> tf.Session:
        """The session; raises a RuntimeError before `opened`."""
        if self._session is None:
            raise RuntimeError('this run has no session yet: take its steps within Run.opened()')
        return self._session

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Context that allows new operations in the graph, before `opened`."""
        with self._graph.as_default(), tf.device(self.plan.devices.home):
            yield

    @contextlib.contextmanager
    def opened(self, values: Mapping[str, np.ndarray] | None = None) -> Iterator[None]:
        """Context that opens a session. The next step continues from the given values.

        Args:
          values: arrays by the names of their variables, as from `checkpoints.read`; default: the initial values,
            or the values of a warm start.
        """
        self._graph.finalize()
        self._calls = {}  # a new dict: a thread that hangs on a lost device may still use the old session's functions
        with contextlib.ExitStack() as stack:
            with self._graph.as_default(), self.plan.mode.scope():
                self._session = tf.Session(self.plan.devices.target, config=session_options(self.plan))
                stack.callback(self._close, self._session)
            refuse_absent(self.session, self.plan.devices)
            self.begin(values)
            del values  # else they stay in memory as long as the session
            stack.enter_context(doing('between two steps'))
            yield

    def begin(self, values: Mapping[str, np.ndarray] | None = None) -> None:
        """Sets the variables to values, as for `opened`; the next step continues from them."""
        for operation in self.graph.initialise:
            self.session.run(operation)
        if values is None:  # the moving average of a variable starts with the variable's value
            first = self.plan.first_values or {}
            values = {name: first[source] for name in self.saved
                      if (source := name if name in first else name.removesuffix(AVERAGE)) in first}
        self.load({name: value for name, value in values.items() if name in self.saved})
        self.session.run(self.graph.start_inputs)
        self.step = self.last_step_taken()
        if self.graph.average:  # the checkpoint's averaging schedule may differ from the current one
            self.session.run(self.graph.average.go_on)

    def _close(self, session):
        with contextlib.suppress(*LOST):  # a lost device has nothing to close
            session.close()

    def take(self, also: Mapping[str, Any] | None = None, feed: Mapping | None = None) -> dict[str, Any]:
        """Takes a step (in `async`, a step of the first tower); returns the results of `run_step`."""
        results = self.run_step(self.step + 1, also, feed)
        self.step += 1
        return results

    def run_step(self, step: int, also: Mapping[str, Any] | None = None, feed: Mapping | None = None,
                 thread: int = 0) -> dict[str, Any]:
        """Runs a step. The caller counts steps, because in `async` several threads call this at once.

        Args:
          step: its number; in `async` the number of begun steps.
          also: further tensors to fetch, by name; a name of `fetches` replaces that tensor.
          thread: the step's thread, a position in `TrainingGraph.fetches`.

        Returns:
          The values of `TrainingGraph.fetches`, with named figures, and of `also`, and `thread`.
        """
        calls, kind = self._calls, (thread, repr(also) if also else '')  # TensorFlow prepares a graph for each kind
        is_first = kind not in calls
        with doing(f'step {step:,}', OF_FIRST_STEP if is_first else 1):
            self.go_on()
            fetches = dict(self.graph.fetches[thread], **also or {})
            if feed:
                results = self.session.run(fetches, feed)
            else:
                if is_first:
                    calls[kind] = self.session.make_callable(fetches)
                # Like `run`, so that an error names its operation.
                results = self.session._do_call(calls[kind])
        figures = dict(zip(self.graph.figures, results['figures']))
        return dict(results, figures=figures, thread=thread)

    def averages_after(self, step: int) -> bool:
        """Returns whether the schedule averages the towers' copies of the variables after a step."""
        return bool(self.graph.average) and self.graph.average.follows(step)

    def average(self, scheduled: bool = True) -> None:
        """Sets the towers' copies of the variables to their mean, in modes that let them drift apart.

        Args:
          scheduled: whether `averages_after` this step. If not, the mean has no momentum.
        """
        if self.graph.average:
            self.session.run(self.graph.average.scheduled if scheduled else self.graph.average.equalise)

    def go_on(self) -> None:
        """Applies momentum to the copies after a scheduled average.

        Each step begins with this, so earlier checkpoints and evaluations use the mean. A second call changes nothing.
        """
        if self.averages_after(self.step):
            self.session.run(self.graph.average.go_on)

    def last_step_taken(self) -> int:
        """Returns the number of the last step from the variables."""
        return int(self.session.run(self._reads[tf.GraphKeys.GLOBAL_STEP]))

    def variables(self, names: Collection[str]) -> dict[str, np.ndarray]:
        """Returns the values of saved variables, by name."""
        return self.session.run({name: self._reads[name] for name in names})

    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Sets saved variables to new values, by name."""
        self._loader.load(self.session, values)


def session_options(plan: Plan) -> tf.ConfigProto:
    """Returns the configuration of a session that takes the steps of a run."""
    towers = plan.settings.towers
    # A session over several processes has fused operations for float32 only. Fusion must not depend on the session,
    # because fused operations round differently.
    fuse = plan.precision.dtype == tf.float32
    # TensorFlow reorders a product with a constant only if its factors share a device, so that must be off, too.
    return session_config(plan.devices, plan.settings.reports.log_device_placement, towers.xla, fuse, fold=False)
