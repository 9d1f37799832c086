"""The edges of graphs in the two orders that sums over neighbours need: by target and by source."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Order(NamedTuple):
    """Edges sorted by one of their ends, all in int32.

    Attributes:
        ptr: `[n + 1]`, where the edges of every node begin.
        other: `[E]`, the other end of each.
        edge: `[E]`, its number in `edge_index`.
    """

    ptr: Tensor
    other: Tensor
    edge: Tensor


class Adjacency(NamedTuple):
    """Edges by target and by source."""

    by_target: Order
    by_source: Order


def pack(edge_index: Tensor, num_nodes: int) -> Tensor:
    """Both orders in one tensor of int32, which is what an operator is given.

    >>> import torch
    >>> from lyapflow_graph.kernels.adjacency import pack, unpack
    >>> unpack(pack(torch.tensor([[0, 1, 1], [1, 2, 0]]), num_nodes=3), num_nodes=3).by_target
    Order(ptr=tensor([0, 1, 2, 3], dtype=torch.int32), other=tensor([1, 0, 1], dtype=torch.int32),
          edge=tensor([2, 0, 1], dtype=torch.int32))
    """
    if max(num_nodes, edge_index.shape[1]) >= 2**31:
        raise ValueError(f"too many edges for one batch: {edge_index.shape[1]}, of at most {2**31 - 1}")
    source, target = edge_index
    parts = []
    for own, other in ((target, source), (source, target)):
        # Stable, so that a sum runs over the edges of a node as they were given.
        edge = torch.argsort(own, stable=True)
        counts = torch.bincount(own, minlength=num_nodes)
        parts += [counts.new_zeros(1), counts.cumsum(0), other[edge], edge]
    return torch.cat(parts).int()


def count_edges(packed: Tensor, num_nodes: int) -> int:
    """How many edges :func:`pack` was given."""
    edges = (packed.shape[0] - 2 * (num_nodes + 1)) // 4
    if packed.ndim != 1 or edges < 0 or packed.shape[0] != 2 * (num_nodes + 1) + 4 * edges:
        shape = list(packed.shape)
        raise ValueError(f"edges must be what GraphBatch.packed_edges gives for {num_nodes} nodes, got shape {shape}")
    return edges


def unpack(packed: Tensor, num_nodes: int) -> Adjacency:
    """The parts of what :func:`pack` made, without copying."""
    edges = count_edges(packed, num_nodes)
    a, b, c, d, e, f = packed.split([num_nodes + 1, edges, edges] * 2)
    return Adjacency(Order(a, b, c), Order(d, e, f))


def ends(packed: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Source and target of every edge, in the order of `edge_index`."""
    by_target, by_source = unpack(packed, num_nodes)
    source, target = (torch.empty_like(by_target.other, dtype=torch.int64) for _ in range(2))
    source[by_target.edge.long()] = by_target.other.long()
    target[by_source.edge.long()] = by_source.other.long()
    return source, target
