"""What is minimised, and what is reported: the losses and metrics that the protocols of benchmarks name.

A loss is a sum over items divided by a count of them, and both are given: so that a batch which several processes share
has the loss that one process would compute, not a mean of means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, final

import torch
import torch.nn.functional as F
import torchmetrics
from torch import Tensor
from torchmetrics.classification import (
    BinaryAUROC,
    BinaryAveragePrecision,
    MulticlassAccuracy,
    MultilabelAUROC,
    MultilabelAveragePrecision,
)

from ..data.dataset import GraphDataset, Loss, Metric
from .schema import ConfigError

Reduce = Callable[[Tensor], Tensor]


class Judged(NamedTuple):
    """What is predicted of the nodes or graphs that count, what is true of them, and the graph each belongs to."""

    prediction: Tensor
    target: Tensor
    graph: Tensor
    graphs: int


def judged(prediction: Tensor, data: Any) -> Judged:
    """The rows of a prediction that are learned from or judged: of all nodes or graphs, or those of the mask.

    >>> from torch_geometric.data import Data
    >>> data = Data(x=torch.zeros(3, 1), y=torch.tensor([0, 1, 1]), mask=torch.tensor([True, False, True]))
    >>> judged(torch.eye(3), data).target
    tensor([0, 1])
    """
    target, mask, batch = data.y, getattr(data, "mask", None), getattr(data, "batch", None)
    graphs = 1 if batch is None else int(data.num_graphs)
    graph = torch.zeros(len(prediction), dtype=torch.long, device=prediction.device) if batch is None else batch
    if len(graph) != len(prediction):  # of graphs, not of nodes
        graph = torch.arange(len(prediction), device=prediction.device)
    if len(target) != len(prediction):
        raise ValueError(f"the data has {len(target)} labels y for {len(prediction)} predictions")
    if mask is not None:
        prediction, target, graph = prediction[mask], target[mask], graph[mask]
    # Losses of half precision lose digits that nobody saves time by.
    return Judged(prediction if prediction.dtype == torch.float64 else prediction.float(), target, graph, graphs)


def loss_sums(loss: Loss, seen: Judged, over_all: Reduce = lambda x: x) -> tuple[Tensor, Tensor]:
    """The sum of a loss over the items of this process, and their count: the loss is the quotient of both over all.

    Args:
        loss: Its name.
        seen: Predictions and targets.
        over_all: The sum of a tensor over all processes that share the batch.

    >>> total, count = loss_sums("l1", Judged(torch.ones(2, 1), torch.tensor([[1.0], [4.0]]), torch.arange(2), 2))
    >>> total / count
    tensor(1.5000)
    """
    prediction, target = seen.prediction, seen.target
    if loss in ("cross_entropy", "weighted_cross_entropy"):
        each = F.cross_entropy(prediction, target, reduction="none")
        if loss == "cross_entropy":
            return each.sum(), torch.full_like(each.sum(), each.numel())
        weight = _class_weights(prediction, target, over_all)[target]
        return (weight * each).sum(), weight.sum()
    target = target.to(prediction.dtype).reshape(prediction.shape)
    if loss == "binary_cross_entropy":
        each = F.binary_cross_entropy_with_logits(prediction, target, reduction="none")
    elif loss == "l1":
        each = (prediction - target).abs()
    elif loss == "mse_by_graph":
        each = _mean_of_graphs(prediction, target, seen)
    else:
        each = (prediction - target).square()
    return each.sum(), torch.full_like(each.sum(), each.numel())


def _class_weights(prediction: Tensor, target: Tensor, over_all: Reduce) -> Tensor:
    """Of each class, the share of the whole batch that is not of it; 0 for those that are absent."""
    ones = torch.ones_like(target, dtype=prediction.dtype)
    counts = over_all(prediction.new_zeros(prediction.shape[1]).index_add(0, target, ones))
    total = counts.sum()
    return torch.where(counts > 0, (total - counts) / total.clamp(min=1), 0.0)


def _mean_of_graphs(prediction: Tensor, target: Tensor, seen: Judged) -> Tensor:
    """The squared error of each graph that has any items, averaged over these: `[graphs with items]`."""
    error = (prediction - target).square().mean(1)
    sums = error.new_zeros(seen.graphs).index_add(0, seen.graph, error)
    counts = error.new_zeros(seen.graphs).index_add(0, seen.graph, torch.ones_like(error))
    return sums[counts > 0] / counts[counts > 0]


def make_metric(dataset: GraphDataset) -> torchmetrics.Metric:
    """The metric of a dataset, updated with :class:`Judged` by :func:`update_metric`.

    >>> from lyapflow_graph.data.dataset import GraphDataset
    >>> make_metric(GraphDataset("mine", "node", [], [], [], 5, 3, None, "cross_entropy", "accuracy"))
    MulticlassAccuracy()
    """
    many = dataset.out_channels
    if dataset.metric == "accuracy":
        return MulticlassAccuracy(max(many, 2), average="micro", validate_args=False)
    if dataset.metric == "weighted_accuracy":
        return ClassAveragedRecall(many)
    if dataset.metric == "roc_auc":
        return BinaryAUROC() if many == 1 else MultilabelAUROC(many)
    if dataset.metric == "average_precision":
        return BinaryAveragePrecision() if many == 1 else MultilabelAveragePrecision(many)
    return MeanError(dataset.metric, dataset.loss)


def check_labels(dataset: GraphDataset, parts: Sequence[Literal["val", "test"]] = ("val", "test")) -> None:
    """That the metric is defined on the validation and test sets: a ranking needs a yes, and ROC AUC a no as well."""
    if dataset.metric not in ("roc_auc", "average_precision") or dataset.out_channels != 1:
        return
    for name in parts:
        graphs = getattr(dataset, name)
        seen = [judged(graphs[i].y.float(), graphs[i]).target for i in range(len(graphs))]
        shares = torch.cat(seen).double().mean() if seen else torch.zeros(())
        if shares == 0 or (shares == 1 and dataset.metric == "roc_auc"):
            told = "positive" if shares == 0 else "negative"
            raise ValueError(f"{dataset.metric} is not defined on {name} of {dataset.name}: it has no {told} label")


def regression_labels(dataset: GraphDataset) -> Tensor:
    """`[m, out_channels]`, the labels of the training set that are learned from.

    >>> from lyapflow_graph.data.dataset import GraphDataset
    >>> regression_labels(GraphDataset("mine", "node", [], [], [], 5, 3, None, "cross_entropy", "accuracy"))
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: training.standardize is for regression, and mine has cross_entropy
    """
    if dataset.loss not in ("l1", "mse", "mse_by_graph"):
        raise ConfigError(f"training.standardize is for regression, and {dataset.name} has {dataset.loss}")
    graphs = [dataset.train[i] for i in range(len(dataset.train))]
    return torch.cat([judged(graph.y, graph).target.reshape(-1, dataset.out_channels) for graph in graphs])


def update_metric(metric: torchmetrics.Metric, seen: Judged) -> None:
    """Add predictions; those of a process that has none leave the metric as it is."""
    if len(seen.target) == 0:
        return
    if isinstance(metric, MeanError):
        metric.update(seen)
    elif isinstance(metric, MulticlassAccuracy | ClassAveragedRecall):
        metric.update(seen.prediction.argmax(1), seen.target)
    else:
        # These look at the order alone. torchmetrics guesses from the values of a batch whether they are logits, so
        # they are brought between 0 and 1 first; not by a sigmoid, for which all large logits are equal.
        score = (1 + F.softsign(seen.prediction.double())) / 2
        target = seen.target.reshape(score.shape).long()
        single = isinstance(metric, BinaryAUROC | BinaryAveragePrecision)
        metric.update(*((score.flatten(), target.flatten()) if single else (score, target)))


@final
class ClassAveragedRecall(torchmetrics.Metric):
    """The share of each class that is found, averaged over the classes that there are.

    >>> metric = ClassAveragedRecall(3)
    >>> metric.update(torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 0]))
    >>> metric.update(torch.tensor([2]), torch.tensor([1]))
    >>> metric.compute()
    tensor(0.3750, dtype=torch.float64)
    """

    higher_is_better = True
    full_state_update = False
    found: Tensor
    total: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        for name in ("found", "total"):
            self.add_state(name, torch.zeros(classes, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, prediction: Tensor, target: Tensor) -> None:
        """Add the classes that were predicted, and the true ones."""
        self.found.index_add_(0, target, (prediction == target).double())
        self.total.index_add_(0, target, torch.ones_like(target, dtype=torch.float64))

    def compute(self) -> Tensor:
        """The average so far; 0 where there was nothing."""
        present = self.total > 0
        return (self.found[present] / self.total[present]).sum() / present.sum().clamp(min=1)


@final
class MeanError(torchmetrics.Metric):
    """The mean absolute error, or the logarithm to base 10 of the mean squared error.

    torchmetrics has the first, but in single precision and without averages within graphs.

    Args:
        metric: "mae" or "log10_mse".
        loss: With "mse_by_graph" the squared error is averaged within each graph first.

    >>> metric = MeanError("log10_mse", "mse")
    >>> metric.update(Judged(torch.zeros(2, 1), torch.full((2, 1), 10.0), torch.arange(2), 2))
    >>> metric.compute()
    tensor(2., dtype=torch.float64)
    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, metric: Metric, loss: Loss) -> None:
        super().__init__()
        if metric not in ("mae", "log10_mse"):
            raise ValueError(f"metric must be mae or log10_mse, got {metric!r}")
        self.metric = metric
        self.error: Loss = "l1" if metric == "mae" else ("mse_by_graph" if loss == "mse_by_graph" else "mse")
        for name in ("total", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, seen: Judged) -> None:
        """Add predictions and targets."""
        exact = seen._replace(prediction=seen.prediction.double(), target=seen.target.double())
        total, count = loss_sums(self.error, exact)
        self.total += total
        self.count += count

    def compute(self) -> Tensor:
        """The error so far."""
        mean = self.total / self.count
        return mean if self.metric == "mae" else mean.log10()
