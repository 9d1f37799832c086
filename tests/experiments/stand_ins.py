"""Tiny graphs in the place of the data of every experiment: of the same task, loss, metric and kinds of features."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Data

from lyapflow_graph import ATOM_FEATURES, BOND_FEATURES
from lyapflow_graph.data import GraphDataset
from lyapflow_graph.data.encodings import with_encodings
from lyapflow_graph.models import Task

Widths = int | tuple[int, ...] | None
GRAPHS = 4  # to learn from; two to validate, and two to test


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a model sees of a data set, but for its size; `single` is one graph whose nodes are in three parts."""

    task: Task
    in_channels: int | tuple[int, ...]
    out_channels: int
    edge_dim: Widths
    loss: str
    metric: str
    single: bool = False

    @classmethod
    def of(cls, data: GraphDataset) -> Kind:
        single = len(data.train) == 1
        widths = data.in_channels, data.out_channels, data.edge_dim
        return cls(data.task, *widths, data.loss, data.metric, single)


KINDS = {
    "gpp/diameter": Kind("graph", 2, 1, None, "mse", "log10_mse"),
    "gpp/sssp": Kind("node", 2, 1, None, "mse_by_graph", "log10_mse"),
    "gpp/eccentricity": Kind("node", 2, 1, None, "mse_by_graph", "log10_mse"),
    "zinc": Kind("graph", (28,), 1, (4,), "l1", "mae"),
    "mnist": Kind("graph", 3, 10, 1, "cross_entropy", "accuracy"),
    "cifar10": Kind("graph", 5, 10, 1, "cross_entropy", "accuracy"),
    "pattern": Kind("node", 3, 2, None, "weighted_cross_entropy", "weighted_accuracy"),
    "cluster": Kind("node", 7, 6, None, "weighted_cross_entropy", "weighted_accuracy"),
    "peptides-func": Kind("graph", ATOM_FEATURES, 10, BOND_FEATURES, "binary_cross_entropy", "average_precision"),
    "peptides-struct": Kind("graph", ATOM_FEATURES, 11, BOND_FEATURES, "l1", "mae"),
    "roman-empire": Kind("node", 300, 18, None, "cross_entropy", "accuracy", single=True),
    "amazon-ratings": Kind("node", 300, 5, None, "cross_entropy", "accuracy", single=True),
    "minesweeper": Kind("node", 7, 1, None, "binary_cross_entropy", "roc_auc", single=True),
    "tolokers": Kind("node", 10, 1, None, "binary_cross_entropy", "roc_auc", single=True),
    "questions": Kind("node", 301, 1, None, "binary_cross_entropy", "roc_auc", single=True),
}


def stand_in(name: str, pe: dict[str, int], root: Path) -> GraphDataset:
    """A few random graphs instead of a data set, with the positional encodings that are asked for."""
    kind, random = KINDS[name], torch.Generator().manual_seed(0)
    if kind.single:
        graph = _graph(kind, 24, random)
        parts = [[_masked(graph, k)] for k in range(3)]
    else:
        graphs = [_graph(kind, nodes, random) for nodes in (5, 6, 7, 5, 6, 4, 7, 5)]
        parts = [graphs[:GRAPHS], graphs[GRAPHS : GRAPHS + 2], graphs[GRAPHS + 2 :]]
    widths = kind.in_channels, kind.out_channels, kind.edge_dim
    return with_encodings(GraphDataset(name, kind.task, *parts, *widths, kind.loss, kind.metric), pe, root)


def _masked(graph: Data, part: int) -> Data:
    graph = graph.clone()
    graph.mask = torch.arange(graph.num_nodes or 0) % 3 == part
    return graph


def _graph(kind: Kind, nodes: int, random: torch.Generator) -> Data:
    """A ring with a chord."""
    there = torch.arange(nodes)
    source, target = torch.cat([there, torch.tensor([0])]), torch.cat([(there + 1) % nodes, torch.tensor([2])])
    edge_index = torch.cat([torch.stack([source, target]), torch.stack([target, source])], dim=1)
    rows = nodes if kind.task == "node" else 1
    graph = Data(_features(kind.in_channels, nodes, random), edge_index, y=_labels(kind, rows, random))
    if kind.edge_dim is not None:
        graph.edge_attr = _features(kind.edge_dim, edge_index.shape[1], random)
    return graph


def _features(widths: int | tuple[int, ...], rows: int, random: torch.Generator) -> Tensor:
    if isinstance(widths, int):
        return torch.randn(rows, widths, generator=random)
    return torch.stack([torch.randint(0, width, (rows,), generator=random) for width in widths], dim=1)


def _labels(kind: Kind, rows: int, random: torch.Generator) -> Tensor:
    if kind.loss in ("cross_entropy", "weighted_cross_entropy"):
        return torch.randint(0, kind.out_channels, (rows,), generator=random)
    if kind.loss == "binary_cross_entropy":  # rows take turns, so that every part has a yes and a no
        columns = torch.arange(kind.out_channels)
        return ((torch.arange(rows)[:, None] // 3 + columns + torch.randint(0, 2, (1,), generator=random)) % 2).float()
    return torch.rand(rows, kind.out_channels, generator=random)
