"""What a training step may wait for, which is asked only once a step does not end: a photo, the input, a tower."""
import numpy as np
import tensorflow.compat.v1 as tf

from cifar10.base.activity import Question
from cifar10.base.graphs import EXAMPLES_SEEN, cpu_session
from cifar10.data import draws
from cifar10.training.graph import batches_ahead
from cifar10.training.run import Run


def of_step(run: Run) -> list[list[Question]]:
    """Returns the Questions about the next step of a `Run`, in groups; see `activity.doing`.

    Their answers change nothing that is saved, but the input's use batches up.
    """
    devices, graph, session = run.plan.devices, run.graph, run.session
    photos = _Photos(run) if run.plan.data.reads_late else None
    side = run.plan.recipe.augmentation.image_sizes()[0]  # where images grow, their shape does not have it
    fed = {tensor: np.zeros([size or side for size in tensor.shape.as_list()], tensor.dtype.as_numpy_dtype)
           for batch in graph.batches for tensor in batch}
    turns = graph.step.turns
    # In the thread that asks: what hangs may have taken all threads of TensorFlow.
    here = tf.RunOptions(inter_op_thread_pool=-1)

    def delivers(k):
        return Question(f'the input of tower {k}', lambda: session.run(graph.batches[k][1], options=here),
                        lambda: f'the input has delivered no batch for tower {k}', is_final=True)

    def computes(k):
        name = f'tower {k} on {devices.place(k)}'
        return Question(name, lambda: session.run(turns.ended[k], fed, options=here),
                        lambda: f'{name} has not finished')
    return [[Question('the photos', photos.read, lambda: f'photo {photos.path} is being read')] if photos else [],
            [delivers(k) for k in range(devices.num_towers)],
            [computes(k) for k in range(devices.num_towers)] if turns else []]


class _Photos:
    """Reads the photos of the next batches, one after the other.

    Attributes:
      path: of the one that is being read.
    """

    def __init__(self, run):
        self._run = run
        self.path = ''

    def read(self):
        """Reads them."""
        plan = self._run.plan
        first = self._run.variables([EXAMPLES_SEEN])[EXAMPLES_SEEN]
        with cpu_session() as session:
            due = first + tf.range((1 + batches_ahead(plan)) * plan.examples_per_step, dtype=tf.int64)
            examples = session.run(draws.shuffled(due, plan.data.count, plan.settings.run.seed))
        for self.path in plan.data.read_for(examples):
            with open(self.path, 'rb') as stream:
                stream.read(1)
