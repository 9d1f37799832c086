"""Labels of a data set, before a run begins: whether its metric is defined on them, and how they spread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from ..data.dataset import GraphDataset
from ..losses import LOSSES, judged
from ..metrics import METRICS
from .schema import ConfigError


def check_labels(dataset: GraphDataset, parts: Sequence[Literal["val", "test"]] = ("val", "test")) -> None:
    """That the validation and test sets have the labels that the metric needs."""
    needs = METRICS[dataset.metric].needs
    if not needs or dataset.out_channels != 1:
        return
    for name in parts:
        graphs = getattr(dataset, name)
        seen = [judged(graphs[i].y.float(), graphs[i]).target for i in range(len(graphs))]
        present = torch.cat(seen).unique().tolist() if seen else []
        for label, told in ((1, "positive"), (0, "negative")):
            if label in needs and label not in present:
                raise ValueError(f"{dataset.metric} is not defined on {name} of {dataset.name}: it has no {told} label")


def regression_labels(dataset: GraphDataset) -> Tensor:
    """`[m, out_channels]`, the labels of the training set that are learned from.

    >>> from lyapflow_graph.data.dataset import GraphDataset
    >>> regression_labels(GraphDataset("mine", "node", [], [], [], 5, 3, None, "cross_entropy", "accuracy"))
    Traceback (most recent call last):
    lyapflow_graph.training.schema.ConfigError: training.standardize is for regression, and mine has cross_entropy
    """
    if LOSSES[dataset.loss].labels != "values":
        raise ConfigError(f"training.standardize is for regression, and {dataset.name} has {dataset.loss}")
    graphs = [dataset.train[i] for i in range(len(dataset.train))]
    return torch.cat([judged(graph.y, graph).target.reshape(-1, dataset.out_channels) for graph in graphs])
