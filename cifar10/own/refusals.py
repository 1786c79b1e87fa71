"""The rules for a user's code on several towers: what is refused, with the remedy, and what is noted in a warning.

A remedy depends on the entry point: a network, a model function, or the step function of a script.
"""
import contextlib
import contextvars
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow.compat.v1 as tf

from cifar10.base.graphs import AVERAGE, EXAMPLES_SEEN, MOVING_STATISTICS, place_of, with_inputs
from cifar10.base.own_files import place_now
from cifar10.own.assignments import ASSIGNMENTS, STEPS, changes_a_variable
from cifar10.own.subgraphs import is_draw, within

NETWORK, MODEL, STEP = 'network', 'model', 'step'  # the entry points
_entry = contextvars.ContextVar('entry', default=NETWORK)

# Types of operations that wait for others which no tower runs.
_SOURCES = re.compile(r'\w*(Queue|Reader|MutableHashTable|MutableDenseHashTable|Iterator|Unstage|Barrier)\w*')
_TABLES = 'HashTable', 'HashTableV2'  # a script runs tf.tables_initializer() itself
_NO_LOGITS = ('Softmax', 'Sigmoid', 'Tanh', 'Relu', 'Relu6', 'Softplus')  # types of operations
# Hooks that only observe a training.
_HARMLESS = {tf.train.LoggingTensorHook, tf.train.SummarySaverHook, tf.train.StepCounterHook, tf.train.NanTensorHook,
             tf.train.CheckpointSaverHook, tf.train.ProfilerHook}
# Types of operations that are linear, of products in one of their factors.
_PRODUCTS = 'Mul', 'RealDiv'
_LINEAR = (*_PRODUCTS, 'Identity', 'Add', 'AddV2', 'AddN', 'Sub', 'Neg', 'Cast', 'Reshape')
_WAYS = 'assign, assign_add or assign_sub outside of a tf.cond'
_MOVING = 'leave it out, or use cifar10.model.add_moving_statistic(variable, value, keep)'
_FEEDS = {NETWORK: 'return logits, {placeholder: value}', MODEL: 'return spec, {placeholder: value}',
          STEP: 'return (loss, train_op), {placeholder: value}, or pass the value in the batch'}


class BrokenRule(Exception):
    """The user's code breaks a rule; the message is a phrase that states the problem and the remedy."""


@contextlib.contextmanager
def for_entry(entry: str) -> Iterator[None]:
    """Context in which remedies are those for an entry point."""
    token = _entry.set(entry)
    try:
        yield
    finally:
        _entry.reset(token)


def phrase(value: Any) -> str:
    """Returns a phrase for a value, such as 'a tensor float32 (8, 10)'."""
    if value is None:
        return 'None'
    return f'a tensor {value.dtype.name} {value.shape}' if isinstance(value, tf.Tensor) else type(value).__name__


# Calls that a function makes.

def refuse_checkpoint(*arguments: Any, **options: Any) -> None:
    """Stands in for `tf.train.init_from_checkpoint`."""
    remedy = ('call it outside of the step function, after on_towers' if _entry.get() == STEP else
              'leave it out, and use --warm_start')
    raise BrokenRule(f'it takes variables from a checkpoint by tf.train.init_from_checkpoint{place_now()}; {remedy}')


def refuse_synchronised(*arguments: Any, **options: Any) -> None:
    """Stands in for `tf.train.SyncReplicasOptimizer.apply_gradients`."""
    raise BrokenRule(f'it uses a SyncReplicasOptimizer{place_now()}; leave it out: except in async and local, all '
                     'towers take a step together')


# Placeholders.

def wrong_feed(key: Any) -> BrokenRule:
    """Returns the error of a value that is fed to something else than a tensor of the graph."""
    return BrokenRule(f'the dict that it returns has the key {key!r}; its keys are the placeholders that are fed: '
                      f'{_FEEDS[_entry.get()]}')


def misfit(key: tf.Tensor, value: Any) -> BrokenRule:
    """Returns the error of a value that does not fit the placeholder that it is fed to."""
    return BrokenRule(f'it feeds {key.name}, {phrase(key)}{place_of(key.op.name)}, '
                      f'{phrase(value) if isinstance(value, tf.Tensor) else value}; feed a value of its shape and type')


def refuse_unfed(call: Any, results: Iterable, feeds: Collection[tf.Tensor], losses: Sequence = ()) -> None:
    """Refuses a placeholder that results or losses need and that nothing feeds.

    In training, this includes placeholders with a default that the function has made itself. That of Keras, its
    learning phase, keeps its default.
    """
    made = {each.op for each in call.placeholders} if call.training else set()
    given = {*call.given_operations(), call.loss_scale.op}
    fed = {key.op for key in feeds if len(key.op.outputs) == 1}
    begun = [variable.initializer for variable in call.variables.values()]
    for entry in [*losses, *results, *begun]:
        operation = getattr(entry, 'op', entry)
        unfed = sorted(each.name for each in with_inputs([operation], without=fed)
                       if (each.type == 'Placeholder' or each.type == 'PlaceholderWithDefault' and each in made)
                       and each not in given)
        for name in unfed[:1]:
            if any(entry is loss for loss in losses):  # labels, perhaps
                raise BrokenRule(f'its loss {operation.name} needs the placeholder {name}, which nothing feeds'
                                 f'{place_of(name)}; leave the loss out, or out of tf.GraphKeys.LOSSES: training adds '
                                 'the loss of --loss')
            raise BrokenRule(f'it makes the placeholder {name}, which nothing feeds{place_of(name)}; feed it: '
                             f'{_FEEDS[_entry.get()]}')


def refuse_fed_variables(call: Any, feeds: dict) -> None:
    """Refuses to feed a value that depends on a variable: no gradient would flow through it."""
    for key, value in feeds.items():
        for handle in sorted({operation.name for operation in with_inputs([value.op])} & call.variables.keys()):
            raise BrokenRule(f'it feeds {key.name} a value that depends on the variable {handle}'
                             f'{place_of(key.op.name)}; use that value itself, in the place of the placeholder')


# Variables and assignments.

def is_saved(variable: tf.Variable) -> bool:
    """Returns whether a variable of the current graph is in a checkpoint."""
    return any(variable is each for each in tf.global_variables())


def check_variables(call: Any) -> None:
    """Refuses variables that are not saved, that cannot be trained, or whose first value does not exist yet."""
    is_model = _entry.get() != NETWORK  # which keeps its own moving averages, and takes its own gradients
    saved = {variable.handle.op.name for variable in tf.global_variables()}
    kept = set() if is_model else {variable.op.name + AVERAGE for variable in tf.trainable_variables()}
    metrics = {each.op.name for key in (tf.GraphKeys.METRIC_VARIABLES, tf.GraphKeys.LOCAL_VARIABLES)
               for each in tf.get_collection(key)}
    for handle, variable in call.variables.items():
        name, dtype = variable.op.name, variable.dtype.base_dtype
        if name == EXAMPLES_SEEN:
            raise BrokenRule(f'training has a variable of the name {name}{place_of(name)}; give yours another one')
        if handle not in saved and is_model and name in metrics:
            raise BrokenRule(f'its train_op updates {name}, which no checkpoint holds{place_of(name)}; leave the '
                             'metric out of train_op')
        if handle not in saved:
            raise BrokenRule(f'the variable {name} is not in the collection tf.GraphKeys.GLOBAL_VARIABLES, so it is '
                             f'neither initialised nor saved{place_of(name)}; leave out collections=')
        if call.depends_on_inputs(variable.initializer):
            raise BrokenRule(f'the initial value of the variable {name} depends on the batch, which does not exist yet'
                             f'{place_of(name)}; use a constant')
        if name in kept:
            raise BrokenRule(f'it keeps a moving average of the variable {name.removesuffix(AVERAGE)}, and so does '
                             f'training, under the same name{place_of(handle)}; leave it out and use '
                             '--moving_averages=true, or give tf.train.ExponentialMovingAverage another name=')
        if dtype == tf.string:
            raise BrokenRule(f'the variable {name} holds text, for which a checkpoint has no checksum{place_of(name)}; '
                             'keep text in variables of Python')
        if variable.trainable and dtype != tf.float32 and not is_model:
            raise BrokenRule(f'the variable {name} is not float32, as all trainable variables must be{place_of(name)}; '
                             'make it float32 and cast its value, or make it with trainable=False')


def refuse_other_changes(call: Any, needed: set, updates: Iterable[tf.Operation], assignments: Any) -> None:
    """Refuses operations that change a variable in another way than by an assignment of a moving statistic."""
    for write in assignments.all:
        variable = call.variables.get(write.inputs[0].op.name)
        if write.type not in ASSIGNMENTS or variable is None:
            raise BrokenRule(f'its operation {write.name} changes a variable{place_of(write.name)}, but not by '
                             f'{_WAYS}, so each update mode would run it a different number of times; {_MOVING}')
        if variable.trainable:
            raise BrokenRule(f'it assigns to the variable {variable.op.name}, which is trained'
                             f'{place_of(write.name)}; leave the assignment out, or make the variable with '
                             'trainable=False')
    library = {function.signature.name: function for function in call.graph.as_graph_def().library.function}
    for operation in needed if library else ():
        for inner in within(operation.node_def, library):
            if changes_a_variable(inner):
                raise BrokenRule(f'its operation {inner.name} changes a variable{place_of(operation.name)}, which '
                                 f'is not {_WAYS}, so it may run a different number of times; {_MOVING}')

    for update in updates:
        operations = with_inputs([update])
        if operations.isdisjoint(assignments.all) and any(operation.type != 'NoOp' for operation in operations):
            raise BrokenRule(f'it adds {update.name} to the collection UPDATE_OPS{place_of(update.name)}, which is not '
                             f'{_WAYS}; {_MOVING}')

def refuse_late_readers(needed: Iterable[tf.Operation], assignments: Any) -> None:
    """Refuses a loop or a branch that takes a variable after an assignment: it would see the value before."""
    for operation in needed if assignments.all else ():
        for tensor in operation.inputs if operation.type != 'ReadVariableOp' else ():
            name = tensor.op.name
            if tensor.dtype == tf.resource and operation not in assignments.all and assignments.before(operation, name):
                raise BrokenRule(f'it reads the variable {name} after assigning to it, in a loop or a branch'
                                 f'{place_of(operation.name)}, where it has the value of before; use the value that '
                                 'the assignment returns')


def check_statistic(call: Any, statistic: Any) -> None:
    """Refuses an integer statistic that depends on the batch, because integers have no mean over the towers."""
    if not statistic.value.dtype.is_floating and call.depends_on_inputs(statistic.value.op):
        raise _no_mean_of_integers(statistic.variable.op.name, statistic.value.op.name)


def _no_mean_of_integers(variable, operation):
    return BrokenRule(f'the integer variable {variable} is assigned a value that depends on the batch, which differs '
                      f'between towers{place_of(operation)}; make the variable float32')


def refuse_sources(call: Any, needed: Iterable[tf.Operation]) -> None:
    """Refuses operations that wait for others which nothing runs."""
    library = {function.signature.name: function for function in call.graph.as_graph_def().library.function}
    for operation in sorted(needed, key=lambda each: each.name):
        inner = within(operation.node_def, library) if library else ()
        for kind in [operation.type, *(each.op for each in inner)]:
            if _SOURCES.fullmatch(kind):
                raise BrokenRule(f'its operation {operation.name} is of type {kind}, which nothing starts or fills'
                                 f'{place_of(operation.name)}; use the batch that the function is given')
            if kind in _TABLES and _entry.get() != STEP:
                raise BrokenRule(f'its lookup table {operation.name} is filled in scripts only'
                                 f'{place_of(operation.name)}; use tf.gather from a constant')


# Networks and losses.

def check_losses(losses: Iterable) -> None:
    """Refuses an entry of the collection LOSSES that is no float32 scalar."""
    for loss in losses:
        if not isinstance(loss, tf.Tensor) or loss.dtype != tf.float32 or loss.shape.rank != 0:
            raise BrokenRule(f'it adds {phrase(loss)} to the collection tf.GraphKeys.LOSSES; add float32 scalars')


def refuse_no_gradient(gradients: Iterable) -> None:
    """Refuses a loss without a gradient."""
    if all(gradient is None for gradient in gradients):
        raise BrokenRule('its loss depends on no trainable variable; make variables with tf.get_variable, and neither '
                         'stop their gradients nor freeze them all')


def fed(images: tf.Tensor) -> str:
    """Returns a phrase for the images that a network is fed."""
    height, width = images.shape[1:3]
    return f'it is fed {height}x{width} images' if height else 'it is fed images of several sizes'


def checked_logits(images: tf.Tensor, num_classes: int, logits: Any) -> tf.Tensor:
    """Refuses a result that is not the logits of images; returns the logits with their shape.

    A value without a known shape, such as the product with a placeholder whose value is not known yet, is checked when
    it is computed.
    """
    if isinstance(logits, tf.Tensor) and logits.shape.rank is None:
        logits = tf.ensure_shape(logits, [images.shape[0], num_classes])
    is_matrix = isinstance(logits, tf.Tensor) and logits.shape.rank == 2 and logits.shape[1] == num_classes
    if is_matrix and logits.dtype.is_floating and logits.shape[:1].is_compatible_with(images.shape[:1]):
        return logits
    place = place_of(logits.op.name) if isinstance(logits, tf.Tensor) else ''
    if is_matrix:
        raise BrokenRule(f'it returns {logits.shape[0]} rows for {images.shape[0]} images{place}, and {fed(images)}; '
                         'in a tf.reshape, write -1 or images.shape[0] for the number of images, and their size as it '
                         'is here')
    raise BrokenRule(f'it returns {phrase(logits)}{place}; return logits, float [images, {num_classes}] '
                     f'({fed(images)})')


def check_example_losses(losses: Any, labels: tf.Tensor) -> None:
    """Refuses a result of a loss function that is not the loss of each example."""
    if not (isinstance(losses, tf.Tensor) and losses.dtype.is_floating and losses.shape.rank == 1
            and losses.shape.is_compatible_with(labels.shape[:1])):
        found = f'{losses.dtype.name} {losses.shape}' if isinstance(losses, tf.Tensor) else type(losses).__name__
        raise BrokenRule(f'it returns {found}; return the loss of each example, float [{labels.shape[0]}], without a '
                         'mean or a sum over them')


def check_augmented(images: tf.Tensor, labels: tf.Tensor, num_classes: int, result: Any) -> None:
    """Refuses a result of an augmentation that is not images and labels, and variables that it makes."""
    form = (f'return images, labels: float [n, {images.shape[1] or "height"}, {images.shape[2] or "width"}, 3] and int '
            f'[n] or float [n, {num_classes}]')
    is_pair = isinstance(result, (tuple, list)) and len(result) == 2
    if not is_pair or not all(isinstance(each, tf.Tensor) for each in result):
        raise BrokenRule(f'it returns {phrase(result)}; {form}')
    changed, classes = result
    if not changed.dtype.is_floating or not changed.shape.is_compatible_with(images.shape):
        raise BrokenRule(f'its images are {phrase(changed)}{place_of(changed.op.name)}; {form}')
    is_class = classes.dtype.is_integer and classes.shape.is_compatible_with(labels.shape)
    soft = labels.shape[:1].concatenate(num_classes)
    if not is_class and not (classes.dtype.is_floating and classes.shape.is_compatible_with(soft)):
        raise BrokenRule(f'its labels are {phrase(classes)}{place_of(classes.op.name)}; {form}')


def refuse_variables_of_augmentation(variables: Sequence[tf.Variable]) -> None:
    """Refuses variables that an augmentation has made."""
    for variable in variables:
        raise BrokenRule(f'it makes the variable {variable.op.name}, which nothing trains or saves; use constants')


# Models and steps.

def check_spec(spec: Any) -> None:
    """Refuses a result of a model function without a loss or a train_op, and parts of it that nothing calls."""
    missing = [name for name in ('loss', 'train_op') if getattr(spec, name, None) is None]
    if missing:
        raise BrokenRule(f"in mode 'train' it returns {phrase(spec)} without {missing[0]}=; return an EstimatorSpec "
                         'with loss= and train_op=')
    for name in ('training_hooks', 'training_chief_hooks'):
        for hook in getattr(spec, name, None) or ():
            if type(hook) not in _HARMLESS:
                raise BrokenRule(f'its {name} has a {type(hook).__name__}, which nothing calls; leave it out, and do '
                                 'its work in the graph')
    make = getattr(spec, 'scaffold_fn', None)
    scaffold = make() if make else getattr(spec, 'scaffold', None)
    if any(getattr(scaffold, name, None) is not None for name in ('init_fn', 'init_op', 'local_init_op')):
        raise BrokenRule('its scaffold gives variables their first values, which nothing calls; leave it out, and use '
                         '--warm_start, or initializer=')


def check_step(loss: Any, train_op: Any) -> None:
    """Refuses a loss that is no float scalar, and a train_op that is no operation."""
    _check_scalar(loss, 'its loss')
    if not hasattr(train_op, 'op') and not isinstance(train_op, tf.Operation):
        raise BrokenRule(f'its train_op is {phrase(train_op)}; return an operation, such as optimizer.minimize('
                         'loss, tf.train.get_global_step())')


def no_predictions(mode: str, predictions: Any) -> BrokenRule:
    """Returns the error of predictions that are no classes."""
    found = ', '.join(map(repr, predictions)) if isinstance(predictions, dict) else phrase(predictions)
    return BrokenRule(f"in mode {mode!r} its predictions are {found}; return 'logits' or 'probabilities' in "
                      'predictions=')


def check_predictions(mode: str, predictions: Any) -> None:
    """Refuses predictions that are no dict, or that have classes alone: these have no cross entropy."""
    if not isinstance(predictions, dict) or not {'classes', 'class_ids'}.isdisjoint(predictions):
        raise no_predictions(mode, predictions)


def check_loss(loss: Any) -> None:
    """Refuses a loss in mode 'eval' that is no float scalar."""
    _check_scalar(loss, "in mode 'eval' its loss")


def _check_scalar(loss, name):
    # A feed whose value is not known yet may leave a loss without a known shape.
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating or (
            loss.shape.rank is not None and loss.shape.num_elements() != 1):
        raise BrokenRule(f'{name} is {phrase(loss)}; return a float scalar, the mean over the batch')


def is_outside_of_branches(mark: Any, graph: tf.Graph) -> bool:
    """Returns True for a gradient that is taken outside of branches and loops; refuses any other."""
    if (taken := mark.taken[0]).graph is not graph:
        raise BrokenRule(f'it takes the gradient of {mark.variable.op.name} in a branch or a loop'
                         f'{place_of(taken.op.name, taken.graph)}; take gradients outside of it')
    return True


def refuse_no_mark(marks: Sequence) -> None:
    """Refuses a train_op that applies no gradient."""
    if not marks:
        raise BrokenRule('its train_op applies no gradient of a variable that is known; take gradients by minimize '
                         'or compute_gradients of a tf.train.Optimizer, tf.gradients or a tf.GradientTape')


def refuse_uses(uses: Iterable[tuple[tf.Tensor, tf.Operation]], of_batch: set) -> None:
    """Refuses a tensor of the batch that the follow-up uses and whose mean over the towers has no meaning.

    Args:
      of_batch: the operations whose values depend on the batch.
    """
    marked = {tensor.op for each in tf.get_collection('gradient_marks') for tensor in each.taken}
    for tensor, operation in uses:
        is_assigned = operation.type in ASSIGNMENTS and tensor is operation.inputs[1]
        if not tensor.dtype.is_floating and is_assigned:
            raise _no_mean_of_integers(operation.inputs[0].op.name, operation.name)
        has_mean = is_assigned or tensor.op in marked or tensor.shape.rank == 0
        if not tensor.dtype.is_floating or not has_mean:
            raise BrokenRule(f'its train_op uses {tensor.name}, {phrase(tensor)}, which depends on the batch and is '
                             f'no gradient{place_of(tensor.op.name)}; the towers have the mean of float scalars only: '
                             'use the mean over the batch, or assign a mean to a variable before the update')
        if tensor.op not in marked and (nonlinear := _nonlinear(tensor.op, of_batch)):
            raise not_the_mean(nonlinear.name)


def _nonlinear(operation, of_batch):
    """Returns an operation on scalars of the batch that is not linear, on the way to a scalar; or None."""
    found, pending = set(), [operation]
    while pending:
        each = pending.pop()
        inputs = [tensor for tensor in each.inputs if tensor.op in of_batch]
        if each in found or not inputs or any(tensor.shape.rank != 0 for tensor in inputs):
            continue  # a reduction gives a scalar
        found.add(each)
        is_product = each.type in _PRODUCTS and (
            len(inputs) > 1 or each.type == 'RealDiv' and inputs[0] is each.inputs[1])
        if each.type not in _LINEAR or is_product or not all(tensor.dtype.is_floating for tensor in inputs):
            return each
        pending += [tensor.op for tensor in inputs]
    return None


def refuse_in_both(towers: set, late: set, once: set, changing: set) -> None:
    """Refuses operations of towers that have no right answer beside the follow-up."""
    for each in _first(towers & late):
        raise BrokenRule(f'its {each.name} is needed for gradients, but comes after the update of variables'
                         f'{place_of(each.name)}; take all gradients before the first update')
    for each in _first(each for each in towers & once if is_draw(each.node_def)):
        raise BrokenRule(f'its {each.name} is used both for the gradients and for the update{place_of(each.name)}, '
                         'where it would draw other numbers; draw twice')
    for each in _first(each for each in towers & changing if each.type not in ASSIGNMENTS):
        raise BrokenRule(f'its operation {each.name} changes a variable before the gradients{place_of(each.name)}, but '
                         f'not by {_WAYS}; {_MOVING}')


def _first(operations):
    return sorted(operations, key=lambda each: each.name)[:1]


def refuse_other_counts(writes: Sequence, users: Sequence, counts_one: bool) -> None:
    """Refuses a train_op that changes the global step in another way than by adding 1."""
    if len(writes) > 1 or not counts_one:
        raise BrokenRule(f'its train_op does not increment the global step by 1{place_of(writes[0].name)}; give '
                         'apply_gradients or minimize global_step=tf.train.get_global_step()')


def refuse_step_in_branch(operation: tf.Operation) -> None:
    """Refuses a branch or a loop that takes the global step."""
    if operation.type != 'VarIsInitializedOp':
        raise BrokenRule(f'its {operation.name} takes the global step in a branch or a loop{place_of(operation.name)}; '
                         'read it before, as in step = tf.identity(tf.train.get_global_step()), and count it outside')


def not_the_mean(name: str, graph: tf.Graph | None = None) -> BrokenRule:
    """Returns the error of a scalar, given the name of its operation, whose mean is not its value for the whole batch.
    """
    return BrokenRule(f'its update uses {name}{place_of(name, graph)}, of which the mean over the towers is not the '
                      'value for the whole batch; assign the mean that it is computed from to a variable first')


# Notes: allowed, but probably a mistake.

def note_of_summary(summary: tf.Tensor) -> str:
    """Returns the note on a summary that cannot be shown."""
    return (f'its summary {summary.op.name}{place_of(summary.op.name)} is of tf.metrics, or of a placeholder that '
            'nothing feeds, and is left out; training shows its own accuracy')


def notes_of_network(call: Any, needed: set) -> tuple[str, ...]:
    """Returns the notes on a network's code."""
    return (*_in_vain(call, needed), *_unread(call, needed))


def notes_of_model(call: Any, division: Any) -> list[str]:
    """Returns the notes on a model's code."""
    notes = [f'its update uses {tensor.op.name}{place_of(tensor.op.name)}, of which it gets the mean over the towers'
             for tensor, variable, _ in division.crossing if variable is None and tensor.shape.rank == 0]
    step = call.step.handle.op
    if not any(changes_a_variable(each) and each.inputs[0].op is step for each in division.once):
        notes.append('its train_op does not count the global step, so each step is counted for it')
    return [*_in_vain(call, division.towers | division.once), *notes]


def notes_of_other_variables(before: Sequence, after: Sequence) -> list[str]:
    """Returns the note on trained variables of a step that have got another name, because theirs exists."""
    others = [(one.name, other.name) for one, other in zip(before, after) if one.trained and one.name != other.name]
    return [f'its variable {name} is not shared with the step before, which has one of this name, but is another one, '
            f'{other}; make it by tf.get_variable to share it' for name, other in others[:1]]


def _in_vain(call, needed):
    """Returns notes on assignments that nothing needs."""
    initialisers = with_inputs(variable.initializer for variable in call.variables.values())
    writes = [each for each in call.graph.get_operations() if changes_a_variable(each) and each not in initialisers]
    # An optimizer that the function has made writes its variables, and then its global step.
    steps = {each for each in writes if STEPS.match(each.type)}
    in_vain = [
        each.name for each in writes if each not in needed | call.not_taken
        and each.inputs[0].op.name in call.variables and steps.isdisjoint(with_inputs([each]))
        and not (steps and call.variables[each.inputs[0].op.name].trainable)
        and all(tensor.op.type != 'RestoreV2' for given in each.inputs for tensor in given.op.inputs)]
    if not in_vain:
        return []
    others = f', nor {len(in_vain) - 1} others' * (len(in_vain) > 1)
    remedy = ('add assignments to tf.GraphKeys.UPDATE_OPS' if _entry.get() == NETWORK else
              'let the train_op wait for tf.get_collection(tf.GraphKeys.UPDATE_OPS)')
    return [f'its {in_vain[0]} assigns to a variable, but nothing needs the assignment{place_of(in_vain[0])}{others}; '
            f'{remedy}']


def _unread(call, needed):
    """Returns notes on collections of losses that nothing reads."""
    known = {MOVING_STATISTICS, *(value for value in vars(tf.GraphKeys).values() if isinstance(value, str))}
    has_losses = len(tf.get_collection(tf.GraphKeys.LOSSES)) > 1  # beside that of training
    found = {}
    for key in sorted(set(call.graph.get_all_collection_keys()) - known, key=str):
        # Scalars are losses; variables are collected for a loss outside of the function.
        entries = [entry for entry in tf.get_collection(key) if (
            entry.shape.rank == 0 and entry.dtype.is_floating and entry.op not in needed
            if isinstance(entry, tf.Tensor)
            else not has_losses and any(entry is variable for variable in tf.trainable_variables()))]
        found.update({key: entries} if entries else {})
    if not found:
        return []
    key, entries = next(iter(found.items()))
    others = f', nor {len(found) - 1} others' * (len(found) > 1)
    return [f'it adds to the collection {key}, which nothing reads{place_of(entries[0].op.name)}{others}; if a loss is '
            'meant, add it to tf.GraphKeys.LOSSES']


def notes_of_outputs(graph: tf.Graph, logits: str) -> list[str]:
    """Returns notes on the outputs of a network in evaluation, given the name of the tensor."""
    with graph.as_default():
        last = graph.get_tensor_by_name(logits).op
        return [f'its outputs are those of a {last.type}{place_of(last.name)}; return logits, as they are before a '
                'softmax, sigmoid or ReLU'] if last.type in _NO_LOGITS else []
