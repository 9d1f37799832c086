"""What is reported: metrics by name, those that the protocols of data sets ask for and those that users register."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import torch.nn.functional as F
from torch import Tensor

from lyapflow.registry import Registry

from .losses import Judged

if TYPE_CHECKING:
    import torchmetrics

    from .data.dataset import GraphDataset


def _as_it_is(seen: Judged) -> tuple[Any, ...]:
    return seen.prediction, seen.target.reshape(seen.prediction.shape)


@final
@dataclasses.dataclass(frozen=True)
class Metric:
    """A metric of the registry.

    Attributes:
        name: What it is asked for by.
        title: In a report, as "ROC AUC".
        short: In the head of a column, as "AUC".
        make: Makes the metric of torchmetrics for a data set.
        maximise: Whether more is better.
        percent: Whether reports multiply it by 100.
        inputs: From :class:`lyapflow_graph.losses.Judged` to the arguments of its `update`, by default prediction and
            target.
        needs: Labels that the validation and test sets must have for it to be defined, where there is one output.

    >>> from lyapflow_graph.metrics import METRICS
    >>> METRICS["accuracy"].maximise, METRICS["mae"].maximise
    (True, False)
    """

    name: str
    title: str
    short: str
    make: Callable[[GraphDataset], torchmetrics.Metric]
    maximise: bool
    percent: bool = False
    inputs: Callable[[Judged], tuple[Any, ...]] = _as_it_is
    needs: tuple[int, ...] = ()

    def update(self, state: torchmetrics.Metric, seen: Judged) -> None:
        """Add predictions; those of a process that has none leave the metric as it is."""
        if len(seen.target) > 0:
            state.update(*self.inputs(seen))

    @property
    def scale(self) -> float:
        """What a value is multiplied by in a report."""
        return 100.0 if self.percent else 1.0


def _metric_of(name: str, found: Any) -> Metric:
    if not isinstance(found, Metric):
        raise TypeError(f"{name} must be a Metric, got {type(found).__name__}")
    return found


METRICS: Registry[Metric] = Registry("metric", _metric_of)
"""All metrics by name."""


def register_metric(metric: Metric) -> Metric:
    """Add a metric to the registry, so that data sets know it by its name.

    Args:
        metric: With a name that is still free.

    >>> import torchmetrics
    >>> from lyapflow_graph.metrics import Metric, register_metric
    >>> def explained(dataset):
    ...     return torchmetrics.ExplainedVariance()
    >>> register_metric(Metric("explained_variance", "explained variance", "EV", explained, maximise=True)).title
    'explained variance'
    """
    return METRICS.add(metric.name, metric)


# torchmetrics belongs to the extra `train`, and is imported when a metric is made.


def _accuracy(dataset: GraphDataset) -> torchmetrics.Metric:
    from torchmetrics.classification import MulticlassAccuracy

    return MulticlassAccuracy(max(dataset.out_channels, 2), average="micro", validate_args=False)


def _recall(dataset: GraphDataset) -> torchmetrics.Metric:
    from .metric_states import ClassAveragedRecall

    return ClassAveragedRecall(dataset.out_channels)


def _roc_auc(dataset: GraphDataset) -> torchmetrics.Metric:
    from torchmetrics.classification import BinaryAUROC, MultilabelAUROC

    return BinaryAUROC() if dataset.out_channels == 1 else MultilabelAUROC(dataset.out_channels)


def _average_precision(dataset: GraphDataset) -> torchmetrics.Metric:
    from torchmetrics.classification import BinaryAveragePrecision, MultilabelAveragePrecision

    many = dataset.out_channels
    return BinaryAveragePrecision() if many == 1 else MultilabelAveragePrecision(many)


def _error(dataset: GraphDataset) -> torchmetrics.Metric:
    from .metric_states import MeanError

    return MeanError(dataset.metric, dataset.loss)


def _classes(seen: Judged) -> tuple[Tensor, Tensor]:
    return seen.prediction.argmax(1), seen.target


def _scores(seen: Judged) -> tuple[Tensor, Tensor]:
    # Rankings look at the order alone. torchmetrics guesses from the values of a batch whether they are logits, so they
    # are brought between 0 and 1 first; not by a sigmoid, for which all large logits are equal.
    score = (1 + F.softsign(seen.prediction.double())) / 2
    target = seen.target.reshape(score.shape).long()
    return (score.flatten(), target.flatten()) if score.shape[1] == 1 else (score, target)


def _whole(seen: Judged) -> tuple[Judged]:
    return (seen,)


for _metric in (
    Metric("accuracy", "accuracy", "accuracy", _accuracy, True, True, _classes),
    Metric("weighted_accuracy", "class-averaged recall", "recall", _recall, True, True, _classes),
    Metric("roc_auc", "ROC AUC", "AUC", _roc_auc, True, True, _scores, needs=(0, 1)),
    Metric("average_precision", "average precision", "AP", _average_precision, True, True, _scores, needs=(1,)),
    Metric("mae", "mean absolute error", "MAE", _error, maximise=False, inputs=_whole),
    Metric("log10_mse", "log10 of the mean squared error", "log10 MSE", _error, maximise=False, inputs=_whole),
):
    register_metric(_metric)
