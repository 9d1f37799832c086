"""Energies that are networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Literal, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from solvers import Systems

from ..base import PointwiseEnergy
from ..layers import MLP
from .registry import register_energy

_BOUNDED: dict[str, Callable[[Tensor], Tensor]] = {"square": torch.square, "softplus": F.softplus, "none": lambda v: v}


@register_energy("mlp", lambda width, normal: MLPEnergy(width, (8, 8)))
@final
class MLPEnergy(PointwiseEnergy):
    r"""A perceptron's output v for each point, as :math:`v^2` by default.

    Args:
        channels: Entries of a point, the last dimension of the state.
        hidden: Widths of the hidden layers.
        activation: "silu", "gelu", "tanh", "softplus", "elu", or "relu" (of which second derivatives are zero).
        bounded: How the energy is kept from below: "square" or "softplus"; "none" leaves it free to fall for ever.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import MLPEnergy
    >>> energy = MLPEnergy(3, hidden=(16, 16))(torch.randn(5, 3))
    >>> energy.shape, bool((energy >= 0).all())
    (torch.Size([5]), True)
    """

    def __init__(
        self,
        channels: int,
        hidden: int | Sequence[int] = (64, 64),
        activation: str = "silu",
        bounded: Literal["square", "softplus", "none"] = "square",
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        if bounded not in _BOUNDED:
            raise ValueError(f"bounded must be one of {', '.join(_BOUNDED)}, got {bounded!r}")
        self.network = MLP(channels, hidden, 1, activation)
        self.bounded = bounded

    def density(self, h: Tensor) -> Tensor:
        return _BOUNDED[self.bounded](self.network(h).squeeze(-1))

    def extra_repr(self) -> str:
        return f"bounded={self.bounded!r}"


@register_energy("convex", lambda width, normal: ConvexEnergy(width, (8, 8)))
@final
class ConvexEnergy(PointwiseEnergy):
    r"""A convex network with a known minimum, positive everywhere else:

    .. math:: V = \sigma(f(h) - f(h^*)) + \epsilon |h - h^*|^2,

    with f convex in its input (weights between hidden layers are positive, its activation softplus is convex and
    grows) and :math:`\sigma(x) = x^3 / (x + 1)^2` above zero, 0 below: convex, growing and twice continuously
    differentiable. So :math:`V(h^*) = 0`, V > 0 elsewhere, every level set is bounded, and there is no other
    stationary point, by construction. After Manek and Kolter, *Learning stable deep dynamics models* (2019), whose
    :math:`\sigma` has no second derivative.

    Args:
        channels: Entries of a point, the last dimension of the state.
        hidden: Widths of the hidden layers.
        minimum: :math:`h^*`, `[channels]`, by default the origin.
        quadratic: :math:`\epsilon`, above 0.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import ConvexEnergy
    >>> energy = ConvexEnergy(2, minimum=torch.tensor([1.0, 2.0]))
    >>> values = energy(torch.tensor([[1.0, 2.0], [1.0, 2.1]]))
    >>> (values > 0).tolist()
    [False, True]
    """

    minimum: Tensor

    def __init__(
        self,
        channels: int,
        hidden: int | Sequence[int] = (64, 64),
        minimum: Tensor | None = None,
        quadratic: float = 1e-2,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        if not quadratic > 0:
            raise ValueError(f"quadratic must be positive, or the minimum need not be the only one; got {quadratic}")
        minimum = torch.zeros(channels) if minimum is None else minimum
        if minimum.shape != (channels,):
            raise ValueError(f"minimum must be [{channels}], got shape {list(minimum.shape)}")
        widths = [hidden] if isinstance(hidden, int) else list(hidden)
        self.register_buffer("minimum", minimum)
        self.quadratic = quadratic
        self.direct = nn.ModuleList(nn.Linear(channels, width) for width in [*widths, 1])
        # Made positive by softplus; they start small, so that a sum over a wide layer starts at an ordinary size.
        self.between = nn.ParameterList(
            torch.randn(above, below) - torch.tensor(float(below)).log()
            for below, above in itertools.pairwise([*widths, 1])
        )

    def density(self, h: Tensor) -> Tensor:
        least = self._convex(self.minimum)
        # Batches of different sizes are rounded differently: without a margin the minimum would not quite be zero.
        margin = 16 * torch.finfo(h.dtype).eps * (1 + least.detach().abs())
        rise = (self._convex(h) - least - margin).clamp(min=0)
        return rise.pow(3) / (rise + 1).square() + self.quadratic * (h - self.minimum).square().sum(-1)

    def _convex(self, h: Tensor) -> Tensor:
        first, *rest = self.direct
        z = F.softplus(first(h))
        for k, (layer, raw) in enumerate(zip(rest, self.between, strict=True)):
            z = F.linear(z, F.softplus(raw)) + layer(h)
            if k < len(rest) - 1:
                z = F.softplus(z)
        return z.squeeze(-1)
