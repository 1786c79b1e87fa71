"""The result of an evaluation: named figures and, for a model that predicts classes, a confusion matrix."""
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cifar10.evaluation import confusion
from cifar10.model.class_weights import are_uneven
from cifar10.run import metrics


class Prediction(NamedTuple):
    """The prediction for an image.

    Attributes:
      loss: the cross entropy; infinite if the probabilities are not finite.
      example: the number of the image in its part of the data set.
      label, predicted: the true class and the predicted class, as `classifier.predicted` returns it.
      image: float32 [height, width, 3], as the network gets it.
      name: `ImageFiles.name_of` the example.
      confidence: the probability of the predicted class.
    """
    loss: float
    example: int
    label: int
    predicted: int
    image: np.ndarray
    name: str = ''
    confidence: float = 0.0

    @property
    def probability(self) -> float:
        """The probability of the true class; NaN if the probabilities are not finite."""
        return math.exp(-self.loss) if math.isfinite(self.loss) else math.nan


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """The result of one pass over the examples.

    Attributes:
      step: the step of the model.
      checkpoint: prefix of the checkpoint; None for an evaluation between two steps of a run.
      figures: name -> number. A model that predicts classes has 'accuracy', 'mean_recall', 'cross_entropy' (without
        weight decay, the mean over the images; not finite if a prediction is not) and, with test-time averaging,
        'averaged_accuracy'; any other model has a 'loss' and its metrics.
      examples: the number of examples.
      classes: the names of the classes.
      confusion: int64 [classes, classes], the number of examples of each class (row) predicted as each class (column).
        An extra column counts predictions that are not finite, if there are any. None for a model without classes.
      predictions: the `Prediction`s with the largest losses, right or wrong, the largest first: predictions that are
        not finite, then the images that fit their class least, which may be mislabelled.
      notes: as `TrainResult` has them.
    """
    step: int
    checkpoint: str | None
    figures: Mapping[str, float]
    examples: int
    classes: tuple[str, ...] = dataclasses.field(default=(), repr=False)
    confusion: np.ndarray | None = dataclasses.field(default=None, repr=False)
    predictions: Sequence[Prediction] = dataclasses.field(default=(), repr=False)
    notes: tuple[str, ...] = dataclasses.field(default=(), repr=False)

    @property
    def accuracy(self) -> float | None:
        """The fraction of correct predictions. This and the next figures are None for a model without them."""
        return self.figures.get('accuracy')

    @property
    def averaged_accuracy(self) -> float | None:
        """The accuracy with test-time averaging."""
        return self.figures.get('averaged_accuracy')

    @property
    def cross_entropy(self) -> float | None:
        """The loss without weight decay, as the mean over the images."""
        return self.figures.get('cross_entropy')

    @property
    def mean_recall(self) -> float | None:
        """The mean over the classes of the fraction of a class's images that are predicted correctly."""
        return self.figures.get('mean_recall')

    @property
    def per_class(self) -> dict[str, dict[str, float]]:
        """The 'precision' and 'recall' of each class, without test-time averaging; recall is NaN without images."""
        rows = [] if self.confusion is None else confusion.per_class(self.confusion, self.classes)
        return {name: dict(precision=float(precision), recall=float(recall))
                for name, _, _, recall, precision, _ in rows}

    @property
    def largest_losses(self) -> list[dict[str, Any]]:
        """The `predictions` as dicts: 'image', 'class', the 'predicted' class, and the 'probability' of its 'class'.

        The image is a file, or an array and an index. 'predicted' and 'probability' are None if the prediction is not
        finite.
        """
        return [{'image': each.name, 'class': self.classes[each.label],
                 'predicted': [*self.classes, None][each.predicted],
                 'probability': metrics.rounded(each.probability)} for each in self.predictions]

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of 'examples', of 'correct' predictions and, if there are any, of 'not_finite' predictions."""
        if self.confusion is None:
            return dict(examples=self.examples)
        not_finite = int(self.confusion[:, len(self.confusion):].sum())
        counts = dict(correct=int(self.confusion.trace()), examples=self.examples)
        return dict(counts, not_finite=not_finite) if not_finite else counts

    def line(self) -> str:
        """Returns the result as a line for people."""
        if self.confusion is None:
            figures = ', '.join(f'{name} = {figure:.5g}' for name, figure in self.figures.items())
            return f'{figures} ({self.examples} examples)'
        counts = self.counts
        line = f"precision @ 1 = {metrics.fraction(self.figures['accuracy'])} ({counts['correct']} of {self.examples})"
        if self.averaged_accuracy is not None:
            line += f', {metrics.fraction(self.averaged_accuracy)} with test-time averaging'
        if are_uneven(self.confusion.sum(1)):
            line += f"; mean recall of the classes {metrics.fraction(self.figures['mean_recall'])}"
        if 'not_finite' in counts:
            line += f"; {counts['not_finite']} predictions not finite, such as for {self.predictions[0].name}"
        return line
