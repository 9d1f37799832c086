"""Diffusion with attention: every node moves towards a mean of its neighbours that it chooses itself."""

from __future__ import annotations

import math
from typing import final

import torch
from torch import Tensor, nn
from torch_geometric.utils import softmax

from solvers import Method

from ..batch import GraphBatch
from .field import GraphDynamics
from .registry import register_dynamics


@register_dynamics("grand")
@final
class GRAND(GraphDynamics):
    r"""Graph neural diffusion.

    .. math:: \frac{dX}{dt} = (A(X) - I) X, \qquad
        a_{ij} = \frac{1}{H} \sum_{k=1}^{H} \operatorname{softmax}_{j \to i}
        \frac{\langle Q_k x_i, K_k x_j \rangle}{\sqrt{d}},

    with an attention of H heads over the edges that end at a node. Since the rows of A sum to 1, every feature stays
    between the smallest and the largest value that it has anywhere in a graph: along the flow, and in Euler's steps up
    to a size of 1. A node that no edge ends at does not move; a loop makes a node attend to itself, too.

    B. Chamberlain et al., GRAND: Graph Neural Diffusion, ICML 2021.

    Args:
        channels: Features of a node, in and out.
        heads: H.
        attention_channels: Width of queries and of keys, of all heads together; by default `channels`.
        linear: Whether attention is that of the features at the start, so that the equation is linear in them. A state
            of the flow then holds these beside the features, `[num_nodes, 2 * channels]`, and they do not move.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import GRAND
    >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> conv = GRAND(2, heads=2, num_steps=100)
    >>> conv(x, torch.tensor([[0, 1], [1, 0]]))  # the third node has no neighbours
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000],
            [0.0000, 0.0000]], grad_fn=...)
    """

    def __init__(
        self,
        channels: int,
        heads: int = 1,
        attention_channels: int | None = None,
        linear: bool = False,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        width = channels if attention_channels is None else attention_channels
        if heads < 1 or width < 1 or width % heads:
            raise ValueError(f"heads must divide attention_channels, got {heads} heads for {width} channels")
        self.heads, self.linear = heads, linear
        self.query, self.key = (nn.Linear(channels, width, bias=False) for _ in range(2))

    @property
    def state_channels(self) -> int:
        return 2 * self.channels if self.linear else self.channels

    def start(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1) if self.linear else x

    def read(self, h: Tensor) -> Tensor:
        return h[..., : self.channels]

    def attention(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        """What every edge weighs, `[E]`: those that end at a node sum to 1."""
        source, target = graphs.edge_index
        query, key = (part(x).unflatten(-1, (self.heads, -1)) for part in (self.query, self.key))
        scores = (query[target] * key[source]).sum(-1) / math.sqrt(query.shape[-1])
        return softmax(scores, target, num_nodes=graphs.num_nodes).mean(-1)

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        x, looked_at = h.split(self.channels, dim=-1) if self.linear else (h, h)
        source, target = graphs.edge_index
        # Differences, so that nodes without neighbours, and equal ones, do not move at all.
        towards = self.attention(looked_at, graphs)[:, None] * (x[source] - x[target])
        velocity = torch.zeros_like(x).index_add(0, target, towards.to(x.dtype))
        return torch.cat([velocity, torch.zeros_like(velocity)], dim=-1) if self.linear else velocity

    def extra_repr(self) -> str:
        linear = ", linear=True" if self.linear else ""
        return f"{super().extra_repr()}, heads={self.heads}{linear}"
