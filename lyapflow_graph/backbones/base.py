"""What a backbone is: layers that map node features to node features of the same width."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from torch import Tensor, nn

from ..batch import GraphBatch, as_graphs
from ..conv import reset


class Layer(nn.Module, ABC):
    """One layer of a backbone.

    Attributes:
        adds_input: Whether what comes in is part of what it gives: then GPS adds none.
    """

    adds_input = False

    @abstractmethod
    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        """New states of nodes and of edges.

        Args:
            h: `[num_nodes, channels]`.
            e: `[E, channels]`, the states of edges, where the graphs have features of edges.
            h0: What the first layer got.
            graphs: Which nodes are connected.
        """


class Backbone(nn.Module, ABC):
    """A graph network from `[num_nodes, channels]` to `[num_nodes, channels]`.

    It keeps nothing between two calls: states of edges start from the features of edges each time, so that the result
    is a function of `x`.

    Args:
        channels: Features of a node, in and out.
        layers: Its layers.
        edge_dim: Features of an edge, None where there are none. They are brought to `channels` by a linear map.

    >>> import torch
    >>> from lyapflow_graph import Backbone, make_backbone
    >>> gnn: Backbone = make_backbone("gcnii", 8, num_layers=4)
    >>> gnn(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(self, channels: int, layers: Iterable[Layer], edge_dim: int | None) -> None:
        super().__init__()
        self.channels, self.edge_dim = channels, edge_dim
        own = edge_dim is not None and edge_dim != channels
        self.edge_encoder = nn.Linear(edge_dim, channels) if own and edge_dim is not None else None
        self.layers = nn.ModuleList(layers)

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        reset(self)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | GraphBatch,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """Features of nodes, `[num_nodes, channels]`.

        Args:
            x: `[num_nodes, channels]`.
            edge_index: `[2, E]`, or a :class:`GraphBatch` instead of all the following arguments.
            edge_attr: `[E, edge_dim]`.
            batch: `[num_nodes]`, the graph that every node belongs to.
            batch_size: How many graphs there are.
        """
        if x.ndim != 2 or x.shape[1] != self.channels:
            raise ValueError(f"x must have shape [num_nodes, {self.channels}], got {list(x.shape)}")
        graphs = as_graphs(edge_index, x.shape[0], edge_attr, batch, batch_size)
        h, e = x, self._edges(graphs, x)
        for layer in self.layers:
            h, e = layer(h, e, x, graphs)
        return h

    def _edges(self, graphs: GraphBatch, x: Tensor) -> Tensor | None:
        check_edge_attr(graphs.edge_attr, self.edge_dim)
        if graphs.edge_attr is None:
            return None
        e = graphs.edge_attr.to(x.dtype)
        return e if self.edge_encoder is None else self.edge_encoder(e)

    def extra_repr(self) -> str:
        edges = "" if self.edge_dim is None else f", edge_dim={self.edge_dim}"
        return f"{self.channels}, num_layers={len(self.layers)}{edges}"


def check_edge_attr(edge_attr: Tensor | None, edge_dim: int | None) -> None:
    if edge_dim is None and edge_attr is not None:
        width = edge_attr.shape[1]
        raise ValueError(f"edge_attr was given, but the network was made without: make it with edge_dim={width}")
    if edge_dim is not None and edge_attr is None:
        raise ValueError(f"edge_attr is missing: the network was made with edge_dim={edge_dim}")
    if edge_attr is not None and edge_attr.shape[1] != edge_dim:
        raise ValueError(f"edge_attr must have {edge_dim} features (edge_dim), got {edge_attr.shape[1]}")


def check_settings(channels: int, num_layers: int, dropout: float) -> None:
    if channels < 1:
        raise ValueError(f"channels must be positive, got {channels}")
    if num_layers < 1:
        raise ValueError(f"num_layers must be positive, got {num_layers}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must lie in [0, 1), got {dropout}")
