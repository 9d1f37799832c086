"""Oscillators at the nodes, coupled along the edges."""

from __future__ import annotations

from typing import Any, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lyapflow.layers import activation_named
from solvers import Method
from solvers.typing import PerSystem

from ..backbones.pyg import call_network
from ..batch import GraphBatch
from .aggregation import (
    check_not_negative,
    normalized_neighbours,
    square,
    symmetric_neighbours,
    symmetrized,
)
from .field import SecondOrder
from .registry import register_dynamics


@register_dynamics("graphcon")
@final
class GraphCON(SecondOrder):
    r"""Graph-coupled oscillator network.

    .. math:: \frac{dX}{dt} = Y, \qquad \frac{dY}{dt} = \sigma(F(X)) - \gamma X - \alpha Y, \qquad
        F(X) = D^{-1/2} A D^{-1/2} X W + b,

    or with any network as F. A state of the flow is (X, Y), `[num_nodes, 2 * channels]`; both start as the features,
    and X is read off in the end.

    With `symmetric=True` and the activation "identity" the coupling has a potential: W is made symmetric, so is A in a
    directed graph, and the field has the energy

    .. math::
        E = \frac{1}{2} |Y|^2 + \frac{\gamma}{2} |X|^2
        - \frac{1}{2} \langle X, D^{-1/2} A D^{-1/2} X W \rangle - \langle X, b \rangle,

    which is conserved without damping: :math:`dE/dt = -\alpha |Y|^2`.

    T. K. Rusch et al., Graph-Coupled Oscillator Networks, ICML 2022.

    Args:
        channels: Features of a node, in and out.
        coupling: F, a network that keeps the width and is called as `coupling(x, edge_index)`; or None for the above.
        activation: :math:`\sigma`, by name: "silu", "gelu", "tanh", "softplus", "elu", "relu" or "identity".
        gamma: The oscillators' own stiffness, not negative.
        damping: :math:`\alpha`, not negative.
        symmetric: Whether A and W are made symmetric.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import GraphCON
    >>> conv = GraphCON(4, activation="identity", damping=0.0, symmetric=True, method="leapfrog")
    >>> edges = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> energy = conv.solve(torch.randn(3, 4), edges, saveat="steps").energy
    >>> bool(((energy - energy[0]).abs() <= 0.01 * energy[0].abs()).all())
    True
    """

    def __init__(
        self,
        channels: int,
        coupling: nn.Module | None = None,
        activation: str = "tanh",
        gamma: float = 1.0,
        damping: float = 1.0,
        symmetric: bool = False,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        if symmetric and coupling is not None:
            raise ValueError("symmetric=True is about the coupling D^-1/2 A D^-1/2 X W; it cannot be had with another")
        self.coupling: Any = square(channels, bias=True) if coupling is None else coupling
        self.own_coupling = coupling is None
        self.activation, self.act = activation, activation_named(activation)
        self.gamma, self.damping = check_not_negative("gamma", gamma), check_not_negative("damping", damping)
        self.symmetric = symmetric

    @property
    def reads_edge_attr(self) -> bool:
        return not self.own_coupling

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        x, y = h.split(self.channels, dim=-1)
        force = self.act(self._coupled(x, graphs)) - self.gamma * x - self.damping * y
        return torch.cat([y, force.to(y.dtype)], dim=-1)

    def _coupled(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        if not self.own_coupling:
            return call_network(self.coupling, x, graphs)
        if self.symmetric:
            return F.linear(symmetric_neighbours(x, graphs), symmetrized(self.coupling.weight), self.coupling.bias)
        return self.coupling(normalized_neighbours(x, graphs))

    @property
    def has_energy(self) -> bool:
        return self.symmetric and self.activation == "identity"

    def energy(self, h: Tensor, graphs: GraphBatch) -> PerSystem:
        if not self.has_energy:
            return super().energy(h, graphs)
        x, y = h.split(self.channels, dim=-1)
        potential = self.gamma * x - self._coupled(x, graphs) - self.coupling.bias
        return graphs.total(y * y + x * potential) / 2

    def extra_repr(self) -> str:
        options = f"activation={self.activation!r}, gamma={self.gamma}, damping={self.damping}"
        return f"{super().extra_repr()}, {options}{', symmetric=True' if self.symmetric else ''}"
