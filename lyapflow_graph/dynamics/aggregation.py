"""What several dynamics are made of: neighbours added up, and matrices that are symmetric or antisymmetric."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import GraphBatch
from ..dirichlet import edge_scale


def add_neighbours(x: Tensor, graphs: GraphBatch, reverse: bool = False) -> Tensor:
    r""":math:`A x`: at every node the sum over the edges that end there; with `reverse`, :math:`A^\top x`.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch
    >>> from lyapflow_graph.dynamics.aggregation import add_neighbours
    >>> add_neighbours(torch.tensor([[1.0], [2.0]]), GraphBatch(torch.tensor([[0], [1]]), 2))
    tensor([[0.],
            [1.]])
    """
    source, target = graphs.edge_index.flip(0) if reverse else graphs.edge_index
    return torch.zeros_like(x).index_add(0, target, x[source])


def normalized_neighbours(x: Tensor, graphs: GraphBatch, reverse: bool = False) -> Tensor:
    r""":math:`D^{-1/2} A D^{-1/2} x`, where an edge counts half in the degree of either end.

    So in an undirected graph, every edge of which is stored in both directions, degrees are the usual ones. Nodes
    without edges get 0.
    """
    scale = edge_scale(graphs, True, x.dtype)
    assert scale is not None
    return scale * add_neighbours(scale * x, graphs, reverse)


def symmetric_neighbours(x: Tensor, graphs: GraphBatch) -> Tensor:
    r""":math:`D^{-1/2} (A + A^\top) D^{-1/2} x / 2`: a symmetric map of x, for directed graphs too."""
    return (normalized_neighbours(x, graphs) + normalized_neighbours(x, graphs, reverse=True)) / 2


def mean_neighbours(x: Tensor, graphs: GraphBatch, reverse: bool = False) -> Tensor:
    r""":math:`\hat A x` with :math:`\hat A = D_{in}^{-1} A`, 0 where no edge ends; or :math:`\hat A^\top x`."""
    ends = torch.bincount(graphs.edge_index[1], minlength=graphs.num_nodes).clamp(min=1).to(x.dtype)[:, None]
    return add_neighbours(x / ends, graphs, reverse) if reverse else add_neighbours(x, graphs) / ends


def antisymmetrized(weight: Tensor) -> Tensor:
    r""":math:`W - W^\top`."""
    return weight - weight.T


def symmetrized(weight: Tensor) -> Tensor:
    r""":math:`(W + W^\top) / 2`."""
    return (weight + weight.T) / 2


def square(channels: int, bias: bool = False) -> nn.Linear:
    """A linear map that keeps the width."""
    return nn.Linear(channels, channels, bias)


def log_cosh(z: Tensor) -> Tensor:
    r""":math:`\log \cosh z`, to rounding, and with all its derivatives, for small and for large z.

    >>> import torch
    >>> from lyapflow_graph.dynamics.aggregation import log_cosh
    >>> log_cosh(torch.tensor([1e-8, 1.0, 1e8]))
    tensor([5.0000e-17, 4.3378e-01, 1.0000e+08])
    """
    small = z.abs() < 1
    near = -torch.log1p(-torch.where(small, z, 0.0).tanh().square()) / 2
    far = F.softplus(2 * z, threshold=50) - z - math.log(2)  # where small it would lose what it is made of
    return torch.where(small, near, far)


def check_not_negative(name: str, value: float) -> float:
    """The number, if it is one that damps or holds rather than drives."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a finite number that is not negative, got {value}")
    return float(value)


# Those that never decrease: the derivative scales rows of the Jacobian, and must not turn them.
MONOTONE = ("tanh", "softplus", "elu", "relu", "identity")


def check_monotone(activation: str) -> None:
    """That an activation is known and never decreases."""
    if activation not in MONOTONE:
        known = ", ".join(MONOTONE)
        raise ValueError(f"activation must be one that never decreases: {known}; got {activation!r}")
