"""Port-Hamiltonian dynamics: a learned energy of positions and momenta that is conserved, or damped."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from solvers import Method
from solvers.typing import PerSystem

from ..batch import GraphBatch
from .aggregation import check_not_negative, log_cosh, normalized_neighbours, square
from .field import SecondOrder
from .registry import register_dynamics


@register_dynamics("phdgn")
@final
class PHDGN(SecondOrder):
    r"""Port-Hamiltonian deep graph network.

    .. math:: \frac{dq}{dt} = \nabla_p H, \qquad \frac{dp}{dt} = -\nabla_q H - \delta \nabla_p H, \qquad
        H = \sum_u 1^\top \log \cosh z_u(q) + \sum_u 1^\top \log \cosh z_u(p),

    where :math:`z(x) = x W + D^{-1/2} A D^{-1/2} x V + b` has parameters of its own for positions q and momenta p. A
    state of the flow is (q, p), `[num_nodes, 2 * channels]`; both start as the features, and q is read off in the end.

    H is the field's energy: :math:`dH/dt = -\delta |\nabla_p H|^2`, conserved without damping. The paper's external
    force is another field: `conv.field(edges) + force`, which has no energy.

    S. Heilig et al., Port-Hamiltonian Architectural Bias for Long-Range Propagation in Deep Graph Networks, ICLR 2025.

    Args:
        channels: Features of a node, in and out.
        damping: :math:`\delta`, not negative.
        bias: Whether there is b.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import PHDGN
    >>> conv = PHDGN(4, method="leapfrog")
    >>> energy = conv.solve(torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), saveat="steps").energy
    >>> bool(((energy - energy[0]).abs() <= 0.01 * energy[0]).all())
    True
    """

    def __init__(
        self,
        channels: int,
        damping: float = 0.0,
        bias: bool = True,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        self.damping = check_not_negative("damping", damping)
        self.positions, self.momenta = _Potential(channels, bias), _Potential(channels, bias)

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        q, p = h.split(self.channels, dim=-1)
        of_q, of_p = self.positions.gradient(q, graphs), self.momenta.gradient(p, graphs)
        return torch.cat([of_p, -of_q - self.damping * of_p], dim=-1)

    @property
    def has_energy(self) -> bool:
        return True

    def energy(self, h: Tensor, graphs: GraphBatch) -> PerSystem:
        q, p = h.split(self.channels, dim=-1)
        return graphs.total(self.positions(q, graphs) + self.momenta(p, graphs))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, damping={self.damping}"


@final
class _Potential(nn.Module):
    """One half of the Hamiltonian, entry by entry, and the gradient of its sum in closed form."""

    def __init__(self, channels: int, bias: bool) -> None:
        super().__init__()
        self.own, self.neighbours = square(channels, bias), square(channels)

    def forward(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        return log_cosh(self._inside(x, graphs))

    def gradient(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        slope = self._inside(x, graphs).tanh()
        there = normalized_neighbours(slope @ self.neighbours.weight, graphs, reverse=True)
        return slope @ self.own.weight + there

    def _inside(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        return self.own(x) + self.neighbours(normalized_neighbours(x, graphs))
