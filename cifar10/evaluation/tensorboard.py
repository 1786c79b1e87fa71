"""What TensorBoard shows of an evaluation, whoever evaluated: curves, confusion matrix, classes, worst mistakes."""
from collections.abc import Sequence

from cifar10.evaluation import confusion, mistakes
from cifar10.evaluation.evaluator import Result
from cifar10.run.summaries import EVAL
from cifar10.run.tensorboard import Events


def write(events: Events, step: int, result: Result, classes: Sequence[str]) -> None:
    """Writes the Result of a step; `classes` are the names of the classes."""
    events.add_scalars(result.scalars, step)
    events.add_text(EVAL + 'precision_by_class', confusion.markdown(result.confusion, classes), step)
    axes = f'{confusion.AXES}; both in the order of the table precision_by_class'
    events.add_image(EVAL + 'precision_confusion', confusion.image(result.confusion), step, axes)
    if result.mistakes:
        events.add_text(EVAL + 'worst_mistakes', mistakes.markdown(result.mistakes, classes), step)
        events.add_image(EVAL + 'worst_mistakes_images', mistakes.picture(result.mistakes), step)
