"""Heat diffusion: every node moves towards its neighbours."""

from __future__ import annotations

from typing import final

from lyapflow import LyapunovField
from solvers import Method

from ..batch import GraphBatch
from ..conv import DynamicsConv
from ..dirichlet import DirichletEnergy
from .field import refuse_edge_attr
from .registry import register_dynamics


@register_dynamics("dgc")
@final
class DGC(DynamicsConv):
    r"""Decoupled graph convolution, that is heat diffusion: the gradient flow of the Dirichlet energy.

    .. math:: \frac{dX}{dt} = -L X,

    with the normalised Laplacian :math:`L = D^{-1/2} (D - A) D^{-1/2}` or with :math:`L = D - A`; the latter keeps the
    sum of the features of every connected component. It has no parameters: time and number of steps are what is to be
    chosen. The paper adds a loop to every node, which does so here too if `edge_index` has it. Edges that run one way
    only count half, at both of their ends.

    Y. Wang et al., Dissecting the Diffusion Process in Linear Graph Convolutional Networks, NeurIPS 2021.

    Args:
        channels: Features of a node, in and out.
        normalized: Whether L is the normalised Laplacian.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import DGC
    >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> DGC(1, normalized=False, num_steps=400)(torch.tensor([[3.0], [0.0], [0.0]]), edges).flatten()
    tensor([1.0000, 1.0000, 1.0000])
    """

    def __init__(
        self,
        channels: int,
        normalized: bool = True,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        self.dirichlet = DirichletEnergy(normalized)

    def bind(self, graphs: GraphBatch) -> LyapunovField:
        refuse_edge_attr(self, graphs)
        return LyapunovField(self.dirichlet, beta=0.0, systems=graphs)
