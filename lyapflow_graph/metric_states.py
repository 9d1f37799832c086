"""Metrics that torchmetrics does not have, in double precision."""

from __future__ import annotations

from typing import final

import torch
import torchmetrics
from torch import Tensor

from .losses import LOSSES, Judged


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

    >>> from lyapflow_graph.losses import Judged
    >>> metric = MeanError("log10_mse", "mse")
    >>> metric.update(Judged(torch.zeros(2, 1), torch.full((2, 1), 10.0), torch.arange(2), 2))
    >>> metric.compute()
    tensor(2., dtype=torch.float64)
    """

    higher_is_better = False
    full_state_update = False
    total: Tensor
    count: Tensor

    def __init__(self, metric: str, loss: str) -> None:
        super().__init__()
        if metric not in ("mae", "log10_mse"):
            raise ValueError(f"metric must be mae or log10_mse, got {metric!r}")
        self.metric = metric
        self.error = "l1" if metric == "mae" else ("mse_by_graph" if loss == "mse_by_graph" else "mse")
        for name in ("total", "count"):
            self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, seen: Judged) -> None:
        """Add predictions and targets."""
        exact = seen._replace(prediction=seen.prediction.double(), target=seen.target.double())
        total, count = LOSSES[self.error].sums(exact)
        self.total += total
        self.count += count

    def compute(self) -> Tensor:
        """The error so far."""
        mean = self.total / self.count
        return mean if self.metric == "mae" else mean.log10()
