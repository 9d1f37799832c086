"""Graphs and networks that the tests of this package draw."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from lyapflow.testing import graphs as graphs_drawn
from lyapflow_graph import BACKBONES, GraphBatch

CHANNELS = 4
# Every backbone of the registry, with the widths of the features of edges that it takes.
WITHOUT_EDGES = tuple(name for name, entry in BACKBONES.items() if entry.edges != "required")
WITH_EDGES = tuple(name for name, entry in BACKBONES.items() if entry.edges != "no")
NETWORKS = [(name, None) for name in WITHOUT_EDGES] + [(name, 3) for name in WITH_EDGES]


def example(edge_dim: int | None = None, dtype: torch.dtype = torch.float64, device: Any = "cpu") -> GraphBatch:
    """Four graphs: five nodes with a loop, a repeated edge and one way only; one node; two without edges; a pair."""
    edges = [(0, 1), (1, 0), (1, 2), (2, 1), (2, 2), (3, 0), (3, 0), (0, 4), (8, 9), (9, 8)]
    edge_index = torch.tensor(edges, device=device).T
    batch = torch.tensor([0] * 5 + [1] + [2] * 2 + [3] * 2, device=device)
    random = torch.Generator().manual_seed(1)
    edge_attr = None if edge_dim is None else torch.randn(len(edges), edge_dim, generator=random, dtype=dtype)
    return GraphBatch(edge_index, 10, None if edge_attr is None else edge_attr.to(device), batch)


@st.composite
def batches(draw: st.DrawFn, edge_dim: int | None = None, **limits: Any) -> GraphBatch:
    """Batches of graphs of all kinds, as `lyapflow.testing.graphs` draws them, with features of edges."""
    drawn = draw(graphs_drawn(**limits))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    edges = drawn.edge_index.shape[1]
    edge_attr = None if edge_dim is None else torch.randn(edges, edge_dim, generator=random, dtype=torch.float64)
    return GraphBatch(drawn.edge_index, drawn.nodes, edge_attr, drawn.batch, drawn.count)


def features(graphs: GraphBatch, channels: int = CHANNELS, seed: int = 0, scale: float = 1.0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return scale * torch.randn(graphs.num_nodes, channels, generator=random, dtype=torch.float64)


def alone(graphs: GraphBatch, i: int) -> tuple[GraphBatch, Tensor]:
    """One graph of a batch, and which nodes were its."""
    nodes = (graphs.graph_of_node == i).nonzero()[:, 0]
    new = torch.full((graphs.num_nodes,), -1)
    new[nodes] = torch.arange(len(nodes))
    kept = graphs.graph_of_edge == i
    edge_attr = None if graphs.edge_attr is None else graphs.edge_attr[kept]
    return GraphBatch(new[graphs.edge_index[:, kept]], len(nodes), edge_attr), nodes


def renumbered(graphs: GraphBatch, order: Tensor) -> GraphBatch:
    """The same graphs with their nodes in another order: node k is what node `order[k]` was; edges are turned round."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    edge_attr = None if graphs.edge_attr is None else graphs.edge_attr.flip(0)
    return GraphBatch(
        place[graphs.edge_index].flip(1), graphs.num_nodes, edge_attr, graphs.graph_of_node[order], graphs.count
    )


def copies(graphs: GraphBatch, count: int) -> GraphBatch:
    """One graph that consists of so many copies of a graph, which are not connected."""
    shift = graphs.num_nodes * torch.arange(count).repeat_interleave(graphs.num_edges)
    return GraphBatch(graphs.edge_index.repeat(1, count) + shift, count * graphs.num_nodes)


def assert_close(found: Tensor, wanted: Tensor, tolerance: float = 1e-11, size: float | None = None) -> None:
    """Equal relative to a size, by default the largest entry."""
    found, wanted = found.detach(), wanted.detach()
    assert found.shape == wanted.shape
    if size is None:
        size = float(wanted.abs().max()) if wanted.numel() else 0.0
    off = float((found - wanted).abs().max()) if wanted.numel() else 0.0
    assert off <= tolerance * (size or 1.0), f"off by {off:.2g} of {size:.2g}"
