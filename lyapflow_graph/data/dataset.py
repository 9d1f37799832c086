"""What a data set is to a training run: graphs in three parts, and everything that its protocol fixes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch_geometric.data import Data

from ..losses import LOSSES
from ..metrics import METRICS
from .options import check_choice


@dataclass(frozen=True)
class GraphDataset:
    """Graphs to learn from, with everything that their protocol fixes.

    Every graph is a `torch_geometric.data.Data` with `x`, `edge_index`, `y`, where there are any `edge_attr` and
    positional encodings, and sometimes `mask`: then only these nodes are learned from or judged. A transductive set is
    one graph, the same in all three parts but for the mask.

    Args:
        name: As `load` takes it.
        task: "node" or "graph".
        train: Graphs to learn from.
        val: Graphs to choose by.
        test: Graphs to report on.
        in_channels: Features of a node, or the categories of each column of integers, as :class:`GraphModel` takes it.
        out_channels: Classes, or values to predict.
        edge_dim: Features of an edge, likewise; None where there are none.
        loss: A name of `lyapflow_graph.losses.LOSSES`. `cross_entropy` and `weighted_cross_entropy` (each class by the
            share of the batch that is not of it) have `y` of class indices; the others floating point numbers, a row
            for each row of the model's output. `mse_by_graph` averages within each graph first.
        metric: What is reported, a name of `lyapflow_graph.metrics.METRICS`.
        pe: Positional encodings that every graph has, and their widths.
        provenance: Where the graphs are from, which variant and split, and what differs from the official set. It
            goes into the record of a run.

    >>> from lyapflow_graph.data import load
    >>> barbell = load("barbell", cliques=4, bridge=3)
    >>> barbell.task, barbell.metric, barbell.train[0].num_nodes
    ('node', 'log10_mse', 11)
    """

    name: str
    task: Literal["node", "graph"]
    train: Sequence[Data]
    val: Sequence[Data]
    test: Sequence[Data]
    in_channels: int | tuple[int, ...]
    out_channels: int
    edge_dim: int | tuple[int, ...] | None
    loss: str
    metric: str
    pe: Mapping[str, int] = field(default_factory=dict)
    provenance: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("task", self.task, ("node", "graph"))
        _ = LOSSES[self.loss], METRICS[self.metric]  # a name that is not known is refused here
