"""Antisymmetric weights at the nodes, so that what a node holds neither fades nor explodes."""

from __future__ import annotations

from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from lyapflow.layers import activation_named
from solvers import Method

from ..backbones.pyg import call_network
from ..batch import GraphBatch
from .aggregation import (
    antisymmetrized,
    check_monotone,
    check_not_negative,
    normalized_neighbours,
    square,
)
from .field import GraphDynamics
from .registry import register_dynamics


@register_dynamics("adgn")
@final
class ADGN(GraphDynamics):
    r"""Anti-symmetric deep graph network.

    .. math:: \frac{dx_i}{dt} = \sigma\big((W - W^\top - \gamma I) x_i + \Phi(X, N_i) + b\big), \qquad
        \Phi = D^{-1/2} A D^{-1/2} X V,

    or with any network as :math:`\Phi`. The eigenvalues of the part of a node's Jacobian that does not come from its
    neighbours have no real part for :math:`\gamma = 0`, and none that is positive for :math:`\gamma > 0`.

    A. Gravina et al., Anti-Symmetric DGN: a stable architecture for Deep Graph Networks, ICLR 2023.

    Args:
        channels: Features of a node, in and out.
        phi: :math:`\Phi`, a network that keeps the width and is called as `phi(x, edge_index)`; or None for the above.
        gamma: Damping, not negative.
        activation: :math:`\sigma`, by name, one that never decreases: "tanh", "softplus", "elu", "relu" or "identity".
        bias: Whether there is b.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import ADGN
    >>> ADGN(4)(torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])).shape
    torch.Size([3, 4])
    """

    def __init__(
        self,
        channels: int,
        phi: nn.Module | None = None,
        gamma: float = 0.1,
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
        self.gamma = check_not_negative("gamma", gamma)
        self.own = square(channels, bias)
        self.own_phi = phi is None
        self.phi = square(channels) if phi is None else phi

    @property
    def reads_edge_attr(self) -> bool:
        return not self.own_phi

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        own = F.linear(h, antisymmetrized(self.own.weight), self.own.bias) - self.gamma * h
        if self.own_phi:
            return self.act(own + self.phi(normalized_neighbours(h, graphs)))
        return self.act(own + call_network(self.phi, h, graphs))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}, gamma={self.gamma}"
