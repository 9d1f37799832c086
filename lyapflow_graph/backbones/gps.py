"""GPS: message passing and attention side by side."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from lyapflow.layers import activation_named

from ..batch import GraphBatch
from .attention import Attention, GraphAttention
from .base import Backbone, Layer, check_settings
from .norms import Norm
from .registry import BACKBONES, Place, register_backbone


@final
class GPSLayer(Layer):
    """One layer of :class:`GPS`."""

    def __init__(self, channels: int, local: Layer, attention: GraphAttention, norm: str, act: str, dropout: float):
        super().__init__()
        self.local, self.attention = local, attention
        self.local_norm, self.attention_norm, self.norm = (Norm(norm, channels) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.feed_forward = nn.Sequential(
            nn.Linear(channels, 2 * channels), activation_named(act), nn.Dropout(dropout),
            nn.Linear(2 * channels, channels), nn.Dropout(dropout),
        )  # fmt: skip

    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        of_rows = graphs.graph_of_node, graphs.count
        near, e = self.local(h, e, h0, graphs)
        if not self.local.adds_input:
            near = h + self.dropout(near)
        far = h + self.dropout(self.attention(h, graphs))
        y = self.local_norm(near, *of_rows) + self.attention_norm(far, *of_rows)
        return self.norm(y + self.feed_forward(y), *of_rows), e


@register_backbone("gps", wraps_layer=True)
@final
class GPS(Backbone):
    r"""The general, powerful, scalable graph transformer of Rampášek et al. (2022).

    .. math::
        m &= \mathrm{norm}(\mathrm{GatedGCN}(h, e)) \quad\text{or, with another layer, }
        \mathrm{norm}(h + \mathrm{dropout}(\mathrm{conv}(h))), \\
        a &= \mathrm{norm}(h + \mathrm{dropout}(\mathrm{attention}(h))), \qquad y = m + a, \\
        h' &= \mathrm{norm}(y + \mathrm{FFN}(y)),

    where the FFN has twice the width inside.

    Args:
        channels: Features of a node, in and out.
        num_layers: How many layers.
        edge_dim: Features of an edge, None where there are none.
        norm: "layer", "graph", "batch" or "none", see :class:`Norm`.
        act: "silu", "gelu", "tanh", "softplus", "elu", "relu" or "identity".
        dropout: In training mode.
        local: The message passing: "gatedgcn" or a name of :class:`PyGBackbone`.
        heads: Of the attention; by default 4, or the most below that which divide the channels.
        attention: "auto", "full" or "linear", see :class:`GraphAttention`.
        full_up_to: With "auto", the largest graph that has full attention.
        fused: Full attention by fused kernels, which have no second derivative.
        options: Of the message passing: `normalize` as for :class:`GatedGCN`, or as for :class:`PyGBackbone`.

    >>> import torch
    >>> from lyapflow_graph import GPS
    >>> gnn = GPS(8, heads=2)
    >>> gnn(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), batch=torch.tensor([0, 0, 0])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        channels: int,
        num_layers: int = 1,
        edge_dim: int | None = None,
        norm: str = "layer",
        act: str = "silu",
        dropout: float = 0.0,
        local: str = "gatedgcn",
        heads: int | None = None,
        attention: Attention = "auto",
        full_up_to: int = 512,
        fused: bool = False,
        **options: Any,
    ) -> None:
        check_settings(channels, num_layers, dropout)
        entry = BACKBONES[local]
        if entry.layer is None:
            raise ValueError(f"{local!r} has no layer to use as local message passing in GPS")
        entry.check_edges(edge_dim is not None)

        def layer(i: int) -> GPSLayer:
            place = Place(channels, edge_dim is not None, i, i + 1 == num_layers, norm, act, dropout)
            near = entry.layer(place, **options)  # type: ignore[misc]
            attend = GraphAttention(channels, heads, attention, full_up_to, fused=fused)
            return GPSLayer(channels, near, attend, norm, act, dropout)

        super().__init__(channels, (layer(i) for i in range(num_layers)), edge_dim)
