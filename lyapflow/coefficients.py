"""Ready coefficients: values per system for `alpha` and `beta`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor

from solvers import Systems
from solvers.typing import PerSystem

from .base import Coefficient
from .layers import MLP

_RANGES: dict[str, Callable[[Tensor], Tensor]] = {"sigmoid": torch.sigmoid, "softplus": F.softplus, "real": lambda x: x}


@final
class MLPCoefficient(Coefficient):
    """A perceptron on each point of a system, the mean over its points, and a range.

    Args:
        channels: Entries of a point, the last dimension of the state.
        hidden: Widths of the hidden layers.
        within: "sigmoid" for [0, scale], "softplus" for [0, infinity), "real" for any sign (`beta` only).
        scale: Multiplies the result.
        activation: Of the hidden layers, as in :class:`MLPEnergy`.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import LyapunovField, MLPCoefficient, MLPEnergy, MLPTangent
    >>> alpha, beta = MLPCoefficient(2), MLPCoefficient(2, within="real")
    >>> field = LyapunovField(MLPEnergy(2), MLPTangent(2), alpha, beta)
    >>> field.parts(0.0, torch.randn(4, 2)).alpha.shape
    torch.Size([4])
    """

    def __init__(
        self,
        channels: int,
        hidden: int | Sequence[int] = 32,
        within: Literal["sigmoid", "softplus", "real"] = "sigmoid",
        scale: float = 1.0,
        activation: str = "silu",
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        if within not in _RANGES:
            raise ValueError(f"within must be one of {', '.join(_RANGES)}, got {within!r}")
        if not scale > 0:
            raise ValueError(f"scale must be positive, got {scale}")
        self.network = MLP(channels, hidden, 1, activation)
        self.within, self.scale = within, scale

    def forward(self, h: Tensor) -> PerSystem:
        values = self.network(h).squeeze(-1)
        count = self.systems.total(torch.ones_like(values)).clamp(min=1)
        return self.scale * _RANGES[self.within](self.systems.total(values) / count)

    def extra_repr(self) -> str:
        return f"within={self.within!r}, scale={self.scale}"


@final
class DescentShare(Coefficient):
    r"""The alpha with which a field keeps all of its tangent's direction M that does not raise the energy:

    .. math:: \alpha = \max(-\langle M, g \rangle,\ r V) / \langle g, g \rangle.

    With :math:`\beta = 1` the velocity is M itself wherever M lowers the energy fast enough, and M without its part
    along g, made to descend at the rate r V, elsewhere: :math:`dV/dt \le -r V`, for :math:`V \ge 0`. So any network M
    becomes a stable field, changed as little as possible. Alpha has no bound: with r > 0 it grows like
    :math:`r V / |g|^2` beside a stationary point that is not a minimum of energy 0, and such a field is stiff. After
    Manek and Kolter, *Learning stable deep dynamics models* (2019).

    Args:
        rate: r, the rate at which the energy has to decay; 0 asks only that it does not grow.

    >>> import torch
    >>> from lyapflow import DescentShare, LyapunovField, Quadratic
    >>> field = LyapunovField(Quadratic([1.0, 1.0]), torch.neg, alpha=DescentShare())
    >>> field(0.0, torch.tensor([[3.0, 4.0]]))  # -h descends already
    tensor([[-3., -4.]])
    """

    takes = ("energy", "gradient", "direction")

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not rate >= 0:
            raise ValueError(f"rate must not be negative, got {rate}")
        self.rate = rate

    def forward(self, h: Tensor, energy: Tensor, gradient: Tensor, direction: Tensor) -> PerSystem:  # type: ignore[override]
        systems = self.systems.bind(h)
        unit, square, scale = systems.at_scale_one(gradient)
        work = -systems.inner(direction, unit)
        if self.rate > 0:
            work = torch.maximum(work, self.rate * energy / scale)
        return work.clamp(min=0) / square / scale

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
