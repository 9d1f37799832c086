"""Antisymmetric in the features and in space, so that nothing fades or explodes anywhere in a graph."""

from __future__ import annotations

import math
from typing import final

import torch.nn.functional as F
from torch import Tensor

from lyapflow.layers import activation_named
from solvers import Method
from solvers.typing import PerSystem

from ..batch import GraphBatch
from .aggregation import antisymmetrized, check_monotone, log_cosh, mean_neighbours, square
from .field import GraphDynamics
from .registry import register_dynamics


@register_dynamics("swan")
@final
class SWAN(GraphDynamics):
    r"""Space-weight antisymmetric network.

    .. math:: \frac{dX}{dt} = \sigma(Z), \qquad Z = X (W - W^\top)^\top + (\hat A + \hat A^\top) X (V - V^\top)^\top
        + \beta (\hat A - \hat A^\top) X (U + U^\top) + b,

    with :math:`\hat A = D_{in}^{-1} A`, which is not symmetric even for an undirected graph. As a map of the features
    of all nodes, :math:`X \mapsto Z - b` is antisymmetric, so all eigenvalues of the whole Jacobian are imaginary,
    whatever :math:`\sigma` that never decreases. Two quantities are conserved: :math:`|X|` with the activation
    "identity" and without bias; and, always, :math:`H = \sum \phi(Z)` with :math:`\phi' = \sigma`, since
    :math:`dH/dt` is :math:`\sigma(Z)` times an antisymmetric map of itself. The field has the latter as its energy
    where :math:`\phi` is simple: :math:`\log \cosh` for "tanh", and half the square for "identity".

    A. Gravina et al., On Oversquashing in Graph Neural Networks through the Lens of Dynamical Systems, AAAI 2025.

    Args:
        channels: Features of a node, in and out.
        beta: How much of the part that is antisymmetric in space is added.
        activation: :math:`\sigma`, by name, one that never decreases: "tanh", "softplus", "elu", "relu" or "identity".
        bias: Whether there is b.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import SWAN
    >>> x, edges = torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> conv = SWAN(4, activation="identity", bias=False, method="rk4")
    >>> torch.allclose(conv(x, edges).norm(), x.norm(), rtol=1e-3)
    True
    """

    def __init__(
        self,
        channels: int,
        beta: float = 1.0,
        activation: str = "tanh",
        bias: bool = True,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        check_monotone(activation)
        self.activation, self.act = activation, activation_named(activation)
        if not math.isfinite(beta):
            raise ValueError(f"beta must be finite, got {beta}")
        self.beta = float(beta)
        self.own, self.even, self.odd = square(channels, bias), square(channels), square(channels)

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        return self.act(self._inside(h, graphs))

    def _inside(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        there, back = mean_neighbours(h, graphs), mean_neighbours(h, graphs, reverse=True)
        own = F.linear(h, antisymmetrized(self.own.weight), self.own.bias)
        even = F.linear(there + back, antisymmetrized(self.even.weight))
        odd = F.linear(there - back, self.odd.weight + self.odd.weight.T)
        return own + even + self.beta * odd

    @property
    def has_energy(self) -> bool:
        return self.activation in ("tanh", "identity")

    def energy(self, h: Tensor, graphs: GraphBatch) -> PerSystem:
        if not self.has_energy:
            return super().energy(h, graphs)
        z = self._inside(h, graphs)
        return graphs.total(log_cosh(z) if self.activation == "tanh" else z * z / 2)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}, beta={self.beta}"
