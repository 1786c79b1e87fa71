"""The rules for user code on several towers: errors with a remedy, and warnings ("notes").

A remedy depends on the entry point: a network, a model function, or the step function of a script.
"""
import contextlib
import contextvars
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE, MOVING_STATISTICS, place_of, with_inputs
from cifar10.own.assignments import ASSIGNMENTS, STEPS, changes_a_variable
from cifar10.own.subgraphs import within

NETWORK, MODEL, STEP = 'network', 'model', 'step'  # the entry points
_entry = contextvars.ContextVar('entry', default=NETWORK)

# Types of operations that wait for operations outside the towers.
_SOURCES = re.compile(r'\w*(Queue|Reader|MutableHashTable|MutableDenseHashTable|Iterator|Unstage|Barrier)\w*')
_NO_LOGITS = ('Softmax', 'Sigmoid', 'Tanh', 'Relu', 'Relu6', 'Softplus')  # types of operations
_FEEDS = {NETWORK: 'return logits, {placeholder: value}', MODEL: 'return spec, {placeholder: value}',
          STEP: 'return (loss, train_op), {placeholder: value}, or pass the value in the batch'}


class BrokenRule(Exception):
    """The user's code breaks a rule; the message is a phrase that states the problem and the remedy."""


@contextlib.contextmanager
def for_entry(entry: str) -> Iterator[None]:
    """Selects the remedies for an entry point within the context."""
    token = _entry.set(entry)
    try:
        yield
    finally:
        _entry.reset(token)


def phrase(value: Any) -> str:
    """Describes a value, such as 'a tensor float32 (8, 10)'; adds the line of a tensor."""
    if isinstance(value, tf.Tensor):
        return f'a tensor {value.dtype.name} {value.shape}{place_of(value.op.name)}'
    return 'None' if value is None else type(value).__name__


# Placeholders.

def wrong_feed(key: Any) -> BrokenRule:
    """Returns the error for a feed whose key is not a tensor of the graph."""
    return BrokenRule(f'the dict that it returns has the key {key!r}; use placeholders as keys: '
                      f'{_FEEDS[_entry.get()]}')


def refuse_unfed(call: Any, operations: Sequence[tf.Operation]) -> None:
    """Refuses an unfed placeholder that operations or initial values need.

    In training, this includes the function's own placeholders with a default. Keras's learning phase keeps its
    default.
    """
    made = {each.op for each in call.placeholders} if call.training else set()
    fed = {key.op for key in call.feeds if len(key.op.outputs) == 1}
    given = {*fed, *(each.op for each in (*call.inputs.values(), call.position, call.loss_scale))}
    needing = [('it', operations, given)]
    needing += [(f'the initial value of {variable.op.name}', [variable.initializer], set())
                for variable in call.variables.values()]
    for name, needed, given in needing:
        unfed = sorted(each.name for each in with_inputs(needed, without=given)
                       if each.type == 'Placeholder' or each.type == 'PlaceholderWithDefault' and each in made)
        if unfed:
            raise BrokenRule(f'{name} needs the placeholder {unfed[0]}, which nothing feeds'
                             f'{place_of(unfed[0]) or place_of(needed[0].name)}; leave out the operations that need '
                             f'it, or feed it: {_FEEDS[_entry.get()]}')


# Variables and assignments.

def is_saved(variable: tf.Variable) -> bool:
    """Returns whether a variable of the current graph is in a checkpoint."""
    return any(variable is each for each in tf.global_variables())


def check_variables(call: Any) -> None:
    """Refuses variables that are not saved, have a name that training uses, or cannot be trained."""
    is_model = _entry.get() != NETWORK  # a model keeps its own moving averages, and takes its own gradients
    kept = set() if is_model else {variable.op.name + AVERAGE for variable in tf.trainable_variables()}
    for handle, variable in call.variables.items():
        name = variable.op.name
        if not is_saved(variable):
            raise BrokenRule(f'the variable {name} is not in tf.GraphKeys.GLOBAL_VARIABLES, so it would be neither '
                             f'initialised nor saved{place_of(name)}; remove collections=, metrics in a train_op, or '
                             'a SyncReplicasOptimizer')
        if name in kept:
            raise BrokenRule(f'its moving average of the variable {name.removesuffix(AVERAGE)} has the same name as '
                             f'the average that training keeps{place_of(handle)}; remove it and use '
                             '--moving_averages=true, or give tf.train.ExponentialMovingAverage a different name=')
        if variable.trainable and variable.dtype.base_dtype != tf.float32 and not is_model:
            raise BrokenRule(f'the trainable variable {name} is not float32{place_of(name)}; make it float32 and cast '
                             'its value, or set trainable=False')


def check_same_variables(training: Sequence, evaluation: Sequence) -> None:
    """Refuses a variable that evaluation needs, but training does not create, or creates with another shape or type."""
    variables = {each.name: each for each in training}
    for each in evaluation:
        before = variables.get(each.name)
        if before is None or (each.shape, each.dtype) != (before.shape, before.dtype):
            made = f'{before.shape.as_list()}, {before.dtype.name}' if before else 'missing'
            raise BrokenRule(f'the variable {each.name} is {each.shape.as_list()}, {each.dtype.name} in '
                             f'evaluation, but {made} in training; create the same variable in both')


def check_assignments(assignments: Any, needed: Iterable[tf.Operation]) -> None:
    """Refuses assignments before the gradients without a known value, and operations that would miss such a value."""
    for write in assignments.all:
        variable = assignments.variables.get(write.inputs[0].op.name)
        if write.type not in ASSIGNMENTS or variable is None:
            raise _other_change(write.name, place_of(write.name))
        if variable.trainable and _entry.get() == NETWORK:
            raise BrokenRule(f'it assigns to the trained variable {variable.op.name}{place_of(write.name)}; remove the '
                             'assignment, or create the variable with trainable=False')
    for operation in needed if assignments.all else ():
        for tensor in operation.inputs if operation.type != 'ReadVariableOp' else ():
            name = tensor.op.name
            if tensor.dtype == tf.resource and operation not in assignments.all and assignments.before(operation, name):
                raise BrokenRule(f'a loop or a branch reads the variable {name} after an assignment, but gets the old '
                                 f'value{place_of(operation.name)}; use the value that the assignment returns')


def _other_change(name, place):
    return BrokenRule(f'its operation {name} changes a variable in an unsupported way{place}; use assign, assign_add '
                      'or assign_sub outside branches and loops, or '
                      'cifar10.model.add_moving_statistic(variable, value, keep)')


def check_operations(operations: Iterable[tf.Operation], towers: Collection[tf.Operation], library: Mapping) -> None:
    """Refuses operations that would wait forever, and variable changes in a tower's functions.

    Args:
      operations: all needed operations.
      towers: the operations of a tower.
      library: the functions of the graph, by name.
    """
    for operation in sorted(operations, key=lambda each: each.name):
        inner = [*within(operation.node_def, library)] if library else []
        for kind in [operation.type, *(each.op for each in inner)]:
            if _SOURCES.fullmatch(kind):
                raise BrokenRule(f'its operation {operation.name} is of type {kind}, which nothing starts or fills'
                                 f'{place_of(operation.name)}; use the batch that the function is given')
        for each in inner:
            if changes_a_variable(each) and operation in towers:
                raise _other_change(each.name, place_of(operation.name))


def integers_of_the_batch(variable: str, operation: str) -> BrokenRule:
    """Returns the error for an integer variable that depends on the batch: integers have no mean."""
    return BrokenRule(f'the value assigned to the integer variable {variable} depends on the batch'
                      f'{place_of(operation)}; make the variable float32')


def refuse_no_gradient(gradients: Iterable) -> None:
    """Refuses a tower without a gradient."""
    if all(gradient is None for gradient in gradients):
        raise BrokenRule('no variable has a gradient; create variables with tf.get_variable, leave some of them '
                         'trainable, and take gradients by minimize, compute_gradients, tf.gradients or '
                         'tf.GradientTape, outside branches and loops')


# Networks, losses and augmentations.

def fed(images: tf.Tensor) -> str:
    """Describes the input images of a network."""
    height, width = images.shape[1:3]
    return f'its images have {height}x{width} pixels' if height else 'its images have several sizes'


def checked_logits(images: tf.Tensor, num_classes: int, logits: Any) -> tf.Tensor:
    """Refuses a result other than the logits of images; returns the logits with their shape.

    A value of unknown shape, such as a product with a placeholder whose value is not known yet, is checked at run
    time.
    """
    if isinstance(logits, tf.Tensor) and logits.shape.rank is None:
        logits = tf.ensure_shape(logits, [images.shape[0], num_classes])
    is_matrix = isinstance(logits, tf.Tensor) and logits.shape.rank == 2 and logits.shape[1] == num_classes
    if is_matrix and logits.dtype.is_floating and logits.shape[:1].is_compatible_with(images.shape[:1]):
        return logits
    if is_matrix:
        raise BrokenRule(f'it returns {logits.shape[0]} rows for {images.shape[0]} images{place_of(logits.op.name)}; '
                         f'in a tf.reshape, use -1 or images.shape[0] as the number of images ({fed(images)})')
    raise BrokenRule(f'it returns {phrase(logits)}; return logits, float [images, {num_classes}] ({fed(images)})')


def check_example_losses(losses: Any, labels: tf.Tensor) -> None:
    """Refuses a result of a loss function other than one loss per example."""
    if not (isinstance(losses, tf.Tensor) and losses.dtype.is_floating and losses.shape.rank == 1
            and losses.shape.is_compatible_with(labels.shape[:1])):
        raise BrokenRule(f'it returns {phrase(losses)}; return one loss per example, float [{labels.shape[0]}], '
                         'not their mean or sum')


def check_augmented(images: tf.Tensor, labels: tf.Tensor, num_classes: int, result: Any) -> None:
    """Refuses a result of an augmentation other than images and labels."""
    found = result if isinstance(result, (tuple, list)) else [result]
    if len(found) == 2 and all(isinstance(each, tf.Tensor) for each in found):
        changed, classes = found
        soft = classes.dtype.is_floating
        shape = labels.shape[:1].concatenate(num_classes) if soft else labels.shape
        if (changed.dtype.is_floating and changed.shape.is_compatible_with(images.shape)
                and (soft or classes.dtype.is_integer) and classes.shape.is_compatible_with(shape)):
            return
    raise BrokenRule(f"it returns {', '.join(map(phrase, found))}; return images, labels: float "
                     f'[n, {images.shape[1] or "height"}, {images.shape[2] or "width"}, 3] and int [n] or float '
                     f'[n, {num_classes}]')


# Models and steps.

def check_spec(spec: Any) -> None:
    """Refuses a result of a model function other than an EstimatorSpec."""
    if not all(hasattr(spec, name) for name in ('predictions', 'loss', 'train_op')):
        raise BrokenRule(f'it returns {phrase(spec)}; return a tf.estimator.EstimatorSpec')


def check_step(loss: Any, train_op: Any) -> None:
    """Refuses a loss other than a float scalar, and a train_op other than an operation."""
    check_loss(loss)
    if not hasattr(train_op, 'op') and not isinstance(train_op, tf.Operation):
        raise BrokenRule(f'its train_op is {phrase(train_op)}; return an operation, such as optimizer.minimize('
                         'loss, tf.train.get_global_step())')


def check_loss(loss: Any) -> None:
    """Refuses a loss other than a float scalar."""
    # The shape of a loss may be unknown until the value of a feed is known.
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating or (
            loss.shape.rank is not None and loss.shape.num_elements() != 1):
        raise BrokenRule(f'its loss is {phrase(loss)}; return a float scalar, the mean over the batch')


def checked_predictions(predictions: Any) -> dict[str, tf.Tensor]:
    """Returns the predictions of mode 'infer' by name; refuses values other than tensors."""
    found = predictions if isinstance(predictions, dict) else dict(predictions=predictions)
    for name, each in found.items():
        if not isinstance(each, tf.Tensor):
            raise BrokenRule(f"in mode 'infer' its {name} is {phrase(each)}; return tensors in predictions=")
    return found


def refuse_uses(uses: Iterable[tuple[tf.Tensor, tf.Operation]], marked: Collection[tf.Operation]) -> None:
    """Refuses a batch-dependent tensor without a mean over the towers that the follow-up uses.

    Args:
      marked: the operations that produce gradients.
    """
    for tensor, operation in uses:
        is_assigned = operation.type in ASSIGNMENTS and tensor is operation.inputs[1]
        if not tensor.dtype.is_floating and is_assigned:
            raise integers_of_the_batch(operation.inputs[0].op.name, operation.name)
        has_mean = is_assigned or tensor.op in marked or tensor.shape.rank == 0
        if not tensor.dtype.is_floating or not has_mean:
            raise BrokenRule(f'its train_op uses {tensor.name}, {phrase(tensor)}, which depends on the batch; use '
                             'gradients and float scalars only, or first assign a mean over the batch to a variable')


def refuse_late(operations: Iterable[tf.Operation]) -> None:
    """Refuses gradients that need operations after the update."""
    for each in sorted(operations, key=lambda each: each.name)[:1]:
        raise BrokenRule(f'its {each.name} is needed for gradients, but runs after an update of variables'
                         f'{place_of(each.name)}; take all gradients before the first update')


def other_count(operation: tf.Operation) -> BrokenRule:
    """Returns the error for an operation on the global step other than a read or an increment by 1."""
    return BrokenRule(f'its {operation.name} uses the global step, but neither reads it nor increments it by 1'
                      f'{place_of(operation.name)}; pass global_step=tf.train.get_global_step() to minimize or '
                      'apply_gradients, outside branches and loops')


def not_the_mean(name: str, graph: tf.Graph) -> BrokenRule:
    """Returns the error for a scalar, given its operation's name, whose mean differs from the whole batch's value."""
    return BrokenRule(f'its update uses {name}{place_of(name, graph)}, but the mean over the towers differs from the '
                      'value for the whole batch; first assign its input, such as the loss, to a variable')


# Notes: allowed, but probably a mistake.

NO_CLASSES = ("its predictions in mode 'infer' have neither 'logits' nor 'probabilities', so it does not classify "
              'images; evaluations report only its loss and its eval_metric_ops')


def notes_of_spec(spec: Any) -> tuple[str, ...]:
    """Returns the note on unused parts of an EstimatorSpec that may set variables."""
    names = [name for name in ('training_hooks', 'training_chief_hooks', 'scaffold') if getattr(spec, name, None)]
    return (f"training ignores its {' and '.join(names)}; do that work in the graph, and load variables "
            'with --warm_start',) if names else ()


def notes_of_network(call: Any, needed: set) -> tuple[str, ...]:
    """Returns the notes on a network's code."""
    return (*_in_vain(call, needed), *_unread(call, needed))


def notes_of_model(call: Any, division: Any) -> list[str]:
    """Returns the notes on a model's code."""
    notes = [f'its update uses the mean over the towers of {tensor.op.name}{place_of(tensor.op.name)}'
             for tensor, variable, _ in division.crossing if not variable and tensor.shape.rank == 0]
    step = call.step.handle.op
    if not any(changes_a_variable(each) and each.inputs[0].op is step for each in division.once):
        notes.append('its train_op does not increment the global step, so the program increments it')
    return [*_in_vain(call, division.towers | division.once), *notes]


def notes_of_other_variables(before: Sequence, after: Sequence) -> list[str]:
    """Returns the note on trained variables of a step that were renamed because their name exists."""
    others = [(one.name, other.name) for one, other in zip(before, after) if one.trained and one.name != other.name]
    return [f'an earlier step has a variable {name}, so its own variable became {other}; use tf.get_variable to share '
            'the variable' for name, other in others[:1]]


def _in_vain(call, needed):
    """Returns the note on assignments that nothing needs."""
    initialisers = with_inputs(variable.initializer for variable in call.variables.values())
    writes = [each for each in call.graph.get_operations() if changes_a_variable(each) and each not in initialisers]
    # The function's own optimizer writes its variables, and then its global step.
    steps = {each for each in writes if STEPS.match(each.type)}
    for each in writes:
        variable = call.variables.get(each.inputs[0].op.name)
        is_restored = any(tensor.op.type == 'RestoreV2' for given in each.inputs for tensor in given.op.inputs)
        if variable is not None and not (each in needed | call.not_taken or is_restored or variable.trainable and steps
                                         or steps & with_inputs([each])):
            remedy = ('add it to tf.GraphKeys.UPDATE_OPS' if _entry.get() == NETWORK else
                      'make the train_op wait for tf.get_collection(tf.GraphKeys.UPDATE_OPS)')
            return [f'its assignment {each.name} never runs{place_of(each.name)}; {remedy}']
    return []


def _unread(call, needed):
    """Returns the note on an unused loss in a collection."""
    known = {MOVING_STATISTICS, *(value for value in vars(tf.GraphKeys).values() if isinstance(value, str))}
    for key in sorted(set(call.graph.get_all_collection_keys()) - known, key=str):
        for each in tf.get_collection(key):
            is_scalar = isinstance(each, tf.Tensor) and each.shape.rank == 0 and each.dtype.is_floating
            if is_scalar and each.op not in needed:
                return [f'it adds to the collection {key}, which training ignores{place_of(each.op.name)}; add losses '
                        'to tf.GraphKeys.LOSSES']
    return []


def notes_of_outputs(graph: tf.Graph, logits: str) -> list[str]:
    """Returns the note on network outputs in evaluation that are not logits, given the tensor's name."""
    with graph.as_default():
        last = graph.get_tensor_by_name(logits).op
        return [f'it returns the output of a {last.type}{place_of(last.name)}; return logits, the values before a '
                'softmax, sigmoid or ReLU'] if last.type in _NO_LOGITS else []
