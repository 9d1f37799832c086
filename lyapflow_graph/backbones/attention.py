"""Attention of the nodes of a graph to each other, exact or linear in their number."""

from __future__ import annotations

import math
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import GraphBatch, Padding
from ..kernels import attention

Attention = Literal["auto", "full", "linear"]


@final
class GraphAttention(nn.Module):
    r"""Multi-head attention in which every node attends to all nodes of its own graph.

    Full attention weighs the values with the softmax of :math:`q_i \cdot k_j / \sqrt{d}`, in memory like the square
    of a graph's size. Linear attention replaces :math:`\exp(q \cdot k)` by its expectation over random features
    :math:`\exp(w \cdot q - |q|^2/2) \exp(w \cdot k - |k|^2/2)` (Choromanski et al., *Rethinking attention with
    Performers*, 2021), drawn once and kept as a buffer, so that the result is a function of the state. It is computed
    as two softmaxes,

    .. math::
        b_{jf} = w_f \cdot k_j - |k_j|^2/2, \qquad
        u_f = \sum_j \mathrm{softmax}_j(b_{jf})\, v_j, \qquad
        \mathrm{out}_i = \sum_f \mathrm{softmax}_f\big(w_f \cdot q_i + \log {\textstyle\sum_j} e^{b_{jf}}\big)\, u_f,

    which is the same without anything that could over- or underflow. Both are twice differentiable, unless `fused`.

    Args:
        channels: Features of a node, in and out.
        heads: How many heads; by default 4, or the most below that which divide the channels.
        attention: "full", "linear", or "auto": full in graphs of up to `full_up_to` nodes, linear in larger ones,
            whatever else is in the batch.
        full_up_to: The limit of "auto".
        features: Of linear attention, for each head; by default twice the channels of a head.
        fused: Use torch's fused kernels for full attention. They are faster, but have no second derivative: for the
            tangent of a field, not for its energy.

    >>> import torch
    >>> from lyapflow_graph import GraphAttention, GraphBatch
    >>> pairs = GraphBatch(torch.empty(2, 0, dtype=torch.long), 4, batch=torch.tensor([0, 0, 1, 1]))
    >>> GraphAttention(8, heads=2, attention="linear")(torch.randn(4, 8), pairs).shape
    torch.Size([4, 8])
    """

    def __init__(
        self,
        channels: int,
        heads: int | None = None,
        attention: Attention = "auto",
        full_up_to: int = 512,
        features: int | None = None,
        fused: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads_for(channels, heads)
        if attention not in ("auto", "full", "linear"):
            raise ValueError(f'attention must be "auto", "full" or "linear", got {attention!r}')
        self.attention: Attention = attention
        self.full_up_to = {"auto": full_up_to, "full": math.inf, "linear": 0}[attention]
        self.fused = fused
        self.of_nodes = nn.Linear(channels, 3 * channels)  # queries, keys and values
        self.out = nn.Linear(channels, channels)
        self.directions: Tensor | None
        width = channels // self.heads
        if attention == "full":
            self.register_buffer("directions", None)
        else:
            self.register_buffer("directions", random_directions(self.heads, features or 2 * width, width))

    def forward(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        """`[num_nodes, channels]` to the same."""
        parts = self.of_nodes(h).reshape(h.shape[0], 3, self.heads, h.shape[1] // self.heads)
        found = h.new_zeros(h.shape, dtype=parts.dtype)
        small, large = graphs.paddings(self.full_up_to)
        for padding, attend in ((small, self._full), (large, self._linear)):
            if padding is not None:
                # [3, graphs, heads, width, channels of a head], in one piece: it is read many times
                block = padding.pad(parts).permute(2, 0, 3, 1, 4).contiguous()
                rows = padding.unpad(attend(block, padding).transpose(1, 2).flatten(2))
                found = rows if padding.nodes is None else found.index_copy(0, padding.nodes, rows)
        return self.out(found)

    def _full(self, block: Tensor, padding: Padding) -> Tensor:
        query, key, value = block
        if self.fused:
            return F.scaled_dot_product_attention(query, key, value, attn_mask=padding.present[:, None, None, :])
        return attention(query, key, value, None if padding.full else padding.present)

    def _linear(self, block: Tensor, padding: Padding) -> Tensor:
        query, key, value = block
        assert self.directions is not None
        scale = query.shape[-1] ** -0.25
        query, key = query * scale, key * scale
        by_query = query @ self.directions.to(query.dtype).transpose(-1, -2)
        by_key = key @ self.directions.to(key.dtype).transpose(-1, -2) - key.square().sum(-1, keepdim=True) / 2
        by_key = _masked(by_key, padding.present[:, None, :, None])
        summary = by_key.softmax(-2).transpose(-1, -2) @ value
        return (by_query + by_key.logsumexp(-2, keepdim=True)).softmax(-1) @ summary

    def extra_repr(self) -> str:
        fused = ", fused=True" if self.fused else ""
        return f"heads={self.heads}, attention={self.attention!r}{fused}"


def _masked(scores: Tensor, present: Tensor) -> Tensor:
    return scores.masked_fill(~present, torch.finfo(scores.dtype).min)


def heads_for(channels: int, heads: int | None) -> int:
    """How many heads: as asked, or 4, or the most below that which divide the channels."""
    if heads is None:
        return next(count for count in (4, 3, 2, 1) if channels % count == 0)
    if heads < 1 or channels % heads:
        raise ValueError(f"heads must divide channels={channels}, got {heads}")
    return heads


def random_directions(heads: int, features: int, width: int) -> Tensor:
    """`[heads, features, width]`: orthogonal in blocks of `width`, with the lengths of normal vectors.

    Orthogonal ones estimate the same expectation with a smaller variance.
    """
    blocks = []
    for _ in range(-(-features // width)):
        Q, R = torch.linalg.qr(torch.randn(heads, width, width))
        # The signs of QR are not random: a rotation that is uniform needs those of R's diagonal.
        blocks.append((Q * R.diagonal(dim1=-2, dim2=-1).sign()[:, None, :]).transpose(-1, -2))
    lengths = torch.randn(heads, features, width).norm(dim=-1, keepdim=True)
    return torch.cat(blocks, dim=1)[:, :features] * lengths
