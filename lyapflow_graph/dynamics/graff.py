"""The gradient flow of a learned quadratic energy of graphs, which attracts or repels along edges."""

from __future__ import annotations

from typing import final

from torch import Tensor

from solvers import Method
from solvers.typing import PerSystem

from ..batch import GraphBatch
from .aggregation import square, symmetric_neighbours, symmetrized
from .field import GraphDynamics
from .registry import register_dynamics


@register_dynamics("graff")
@final
class GRAFF(GraphDynamics):
    r"""Gradient flow framework: down a parametrised Dirichlet energy, in closed form.

    .. math::
        E = \frac{1}{2} \sum_i \langle x_i, \Omega x_i \rangle
        - \frac{1}{2} \sum_{ij} \bar a_{ij} \langle x_i, W x_j \rangle, \qquad
        \frac{dX}{dt} = -\nabla E = -X \Omega + \bar A X W,

    where :math:`\bar A = D^{-1/2} A D^{-1/2}` is the normalised adjacency, made symmetric in a directed graph, and
    :math:`\Omega` and W are symmetric whatever their parameters are. Positive eigenvalues of W attract neighbours,
    negative ones repel them. The paper's source term is left out, as it would need the features at the start.

    F. Di Giovanni et al., Understanding convolution on graphs via energies, TMLR 2023.

    Args:
        channels: Features of a node, in and out.
        num_steps, step_size, method, checkpoint: As for :class:`lyapflow_graph.DynamicsConv`.

    >>> import torch
    >>> from lyapflow_graph.dynamics import GRAFF
    >>> conv = GRAFF(4, method="armijo_euler")
    >>> solution = conv.solve(torch.randn(3, 4), torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]), saveat="steps")
    >>> bool((solution.energy.diff(dim=0) <= 1e-6).all())
    True
    """

    def __init__(
        self,
        channels: int,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
    ) -> None:
        super().__init__(channels, num_steps, step_size, method, checkpoint)
        self.own, self.pair = square(channels), square(channels)

    @property
    def Omega(self) -> Tensor:
        """How a node's features act on themselves, symmetric."""
        return symmetrized(self.own.weight)

    @property
    def W(self) -> Tensor:
        """How the features of neighbours act on each other, symmetric."""
        return symmetrized(self.pair.weight)

    @property
    def has_energy(self) -> bool:
        return True

    def energy(self, h: Tensor, graphs: GraphBatch) -> PerSystem:
        # Of a quadratic form half the state times the gradient.
        return -graphs.total(h * self.velocity(h, graphs)) / 2

    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        return symmetric_neighbours(h, graphs) @ self.W - h @ self.Omega
