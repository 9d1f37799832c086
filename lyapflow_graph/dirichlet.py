"""The Dirichlet energy: how much the features of connected nodes differ."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from lyapflow import Energy
from solvers import Systems
from solvers.typing import PerSystem

from .batch import GraphBatch, graphs_of


def edge_scale(graphs: GraphBatch, normalized: bool, dtype: torch.dtype) -> Tensor | None:
    """What to multiply a node's features with before they are compared: `1 / sqrt(degree)`, or None for nothing.

    An edge counts half at either end, so that an undirected one, which is stored in both directions, counts as one.
    A node without edges has 0.
    """
    if not normalized:
        return None
    ends = torch.bincount(graphs.edge_index.reshape(-1), minlength=graphs.num_nodes).to(dtype) / 2
    return torch.where(ends > 0, ends.clamp(min=0.5).rsqrt(), 0.0)[:, None]


@final
class DirichletEnergy(Energy):
    r"""The Dirichlet energy of every graph.

    .. math:: V = \frac{1}{4} \sum_{(i, j) \in E} |h_i - h_j|^2,

    over the edges as they are stored, an undirected one in both directions; so its gradient is :math:`L h` with the
    Laplacian :math:`L = D - A` of an undirected graph. Edges that run one way only count half, at both of their ends.

    Args:
        normalized: Compare :math:`h_i / \sqrt{d_i}` instead: then L is the normalised Laplacian.
        systems: The graphs, a :class:`GraphBatch`; or give them by `bind(graphs)`.

    >>> import torch
    >>> from lyapflow import LyapunovField
    >>> from lyapflow_graph import DirichletEnergy, GraphBatch
    >>> path = GraphBatch(torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), num_nodes=3)
    >>> diffusion = LyapunovField(DirichletEnergy(systems=path))
    >>> diffusion(0.0, torch.tensor([[1.0], [0.0], [-2.0]])).flatten()
    tensor([-1., -1.,  2.])
    """

    def __init__(self, normalized: bool = False, systems: Systems | None = None) -> None:
        super().__init__(systems)
        self.normalized = normalized

    def forward(self, h: Tensor) -> PerSystem:
        graphs = graphs_of(self)
        scale = edge_scale(graphs, self.normalized, h.dtype)
        source, target = (h if scale is None else scale * h)[graphs.edge_index]
        squares = (source - target).square().flatten(1).sum(1) / 4
        of_edge = graphs.graph_of_node[graphs.edge_index[1]]
        return squares.new_zeros(graphs.count).index_add(0, of_edge, squares)

    def extra_repr(self) -> str:
        return "normalized=True" if self.normalized else ""
