"""Ready tangents: directions that a field makes orthogonal to its energy's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from solvers import Systems

from .base import Tangent
from .layers import MLP, activation_named


@final
class MLPTangent(Tangent):
    """A perceptron on each point, the last dimension of the state.

    Args:
        channels: Entries of a point.
        hidden: Widths of the hidden layers.
        activation: Of the hidden layers, as in :class:`MLPEnergy`.
        last_activation: Of the output: "identity", or "tanh" for a bounded one. With "relu" no entry could be
            negative.
        timed: Whether the time is an input too.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import LyapunovField, MLPEnergy, MLPTangent
    >>> field = LyapunovField(MLPEnergy(2), MLPTangent(2, timed=True))
    >>> field(0.5, torch.randn(4, 2)).shape
    torch.Size([4, 2])
    """

    def __init__(
        self,
        channels: int,
        hidden: int | Sequence[int] = (64, 64),
        activation: str = "silu",
        last_activation: str = "identity",
        timed: bool = False,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        self.network = MLP(channels + timed, hidden, channels, activation)
        self.last = activation_named(last_activation)
        self.takes = ("t",) if timed else ()

    def forward(self, h: Tensor, t: Tensor | None = None) -> Tensor:
        if t is not None:
            h = torch.cat([h, t.to(h.dtype).expand(*h.shape[:-1], 1)], dim=-1)
        return self.last(self.network(h))


@final
class AntisymmetricTangent(Tangent):
    r"""A learned rotation of the gradient: :math:`M = (W - W^\top)\, g` on each point.

    It is orthogonal to g by construction, before any projection: the energy is to this part what a Hamiltonian is.

    Args:
        channels: Entries of a point, the last dimension of the state; two at least.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import AntisymmetricTangent, LyapunovField, MLPEnergy
    >>> parts = LyapunovField(MLPEnergy(4), AntisymmetricTangent(4)).parts(0.0, torch.randn(8, 4))
    >>> torch.allclose(parts.direction, parts.tangent, atol=1e-6)
    True
    """

    takes = ("gradient",)

    def __init__(self, channels: int, systems: Systems | None = None) -> None:
        super().__init__(systems)
        if channels < 2:
            raise ValueError(
                f"in {channels} dimension nothing is orthogonal to a gradient; channels must be at least 2"
            )
        self.weight = nn.Parameter(torch.randn(channels, channels) / channels**0.5)

    def forward(self, h: Tensor, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient @ (self.weight.T - self.weight)
