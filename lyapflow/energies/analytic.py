"""Energies with a formula. Each is a sum over the points of a system; `systems` says what a system is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from solvers import Systems

from ..base import PointwiseEnergy
from .registry import Normal, register_energy


class AnalyticEnergy(PointwiseEnergy):
    """A formula with constants."""

    def _store(self, name: str, value: Tensor | Sequence[float] | Sequence[Sequence[float]]) -> Tensor:
        """Keep a constant; a Parameter stays one, and so is learned."""
        if isinstance(value, nn.Parameter):
            setattr(self, name, value)
            return value
        tensor = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else torch.get_default_dtype())
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be of a floating point type, got {tensor.dtype}")
        self.register_buffer(name, tensor)
        return tensor


def _bowl(width: int, normal: Normal) -> Quadratic:
    matrix = normal(width, width)
    return Quadratic(matrix @ matrix.T, normal(width))


@register_energy("quadratic", _bowl)
@final
class Quadratic(AnalyticEnergy):
    r""":math:`V = \frac12 (h - c)^\top Q (h - c)`, whose gradient is :math:`Q (h - c)`.

    Args:
        matrix: Q, symmetric: `[d, d]`, or its diagonal, `[d]`. A `Parameter` is learned, its symmetric part counts.
        center: c, `[d]`, by default the origin.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import Quadratic
    >>> Quadratic([1.0, 4.0])(torch.tensor([[2.0, 1.0]]))
    tensor([4.])
    """

    matrix: Tensor
    center: Tensor

    def __init__(
        self,
        matrix: Tensor | Sequence[float] | Sequence[Sequence[float]],
        center: Tensor | Sequence[float] | None = None,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        Q = self._store("matrix", matrix)
        if Q.ndim not in (1, 2) or (Q.ndim == 2 and Q.shape[0] != Q.shape[1]):
            raise ValueError(f"matrix must be [d, d], or its diagonal [d], got shape {list(Q.shape)}")
        if Q.ndim == 2 and not isinstance(Q, nn.Parameter) and not torch.equal(Q, Q.T):
            raise ValueError("matrix must be symmetric: only its symmetric part makes a difference; try (Q + Q.T) / 2")
        c = self._store("center", Q.detach().new_zeros(Q.shape[-1]) if center is None else center)
        if c.shape != Q.shape[-1:]:
            raise ValueError(f"center must be [{Q.shape[-1]}], like the matrix, got shape {list(c.shape)}")

    def density(self, h: Tensor) -> Tensor:
        d = self.matrix.shape[-1]
        if h.shape[-1] != d:
            raise ValueError(f"Quadratic is for points of {d} entries, got a state of shape {list(h.shape)}")
        x = h - self.center
        image = x * self.matrix if self.matrix.ndim == 1 else x @ self.matrix
        return (x * image).sum(-1) / 2


@register_energy("double_well")
@final
class DoubleWell(AnalyticEnergy):
    r""":math:`V = \frac{b}{w^4} (h_1^2 - w^2)^2 + \frac12 \sum_{i > 1} h_i^2`: two wells, at :math:`h_1 = \pm w`.

    Args:
        barrier: b, the height between the wells.
        width: w, their distance from the middle.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import DoubleWell
    >>> DoubleWell(barrier=1.0)(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [1.0, 0.0]]))
    tensor([0., 1., 0.])
    """

    def __init__(self, barrier: float = 0.25, width: float = 1.0, systems: Systems | None = None) -> None:
        super().__init__(systems)
        if not barrier > 0 or not width > 0:
            raise ValueError(f"barrier and width must be positive, got {barrier} and {width}")
        self.barrier, self.width = barrier, width

    def density(self, h: Tensor) -> Tensor:
        first, rest = h[..., 0] / self.width, h[..., 1:]
        return self.barrier * (first.square() - 1).square() + rest.square().sum(-1) / 2

    def extra_repr(self) -> str:
        return f"barrier={self.barrier}, width={self.width}"


@register_energy("rosenbrock", widths=(2, None))
@final
class Rosenbrock(AnalyticEnergy):
    r""":math:`V = \sum_i b\, (h_{i+1} - h_i^2)^2 + (a - h_i)^2`: a curved valley, its minimum 0 at :math:`h_i = 1`
    for a = 1.

    Args:
        a: Where the valley's minimum lies.
        b: How steep its sides are.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import Rosenbrock
    >>> Rosenbrock()(torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    tensor([  0., 101.])
    """

    def __init__(self, a: float = 1.0, b: float = 100.0, systems: Systems | None = None) -> None:
        super().__init__(systems)
        self.a, self.b = a, b

    def density(self, h: Tensor) -> Tensor:
        if h.shape[-1] < 2:
            raise ValueError(f"Rosenbrock is for points of two entries or more, got a state of shape {list(h.shape)}")
        low, high = h[..., :-1], h[..., 1:]
        return (self.b * (high - low.square()).square() + (self.a - low).square()).sum(-1)

    def extra_repr(self) -> str:
        return f"a={self.a}, b={self.b}"


@register_energy("himmelblau", widths=(2, 2))
@final
class Himmelblau(AnalyticEnergy):
    r""":math:`V = (x^2 + y - 11)^2 + (x + y^2 - 7)^2`: four minima of energy 0, for points of two entries.

    Args:
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import Himmelblau
    >>> Himmelblau()(torch.tensor([[3.0, 2.0], [0.0, 0.0]]))
    tensor([  0., 170.])
    """

    def density(self, h: Tensor) -> Tensor:
        if h.shape[-1] != 2:
            raise ValueError(f"Himmelblau is for points of two entries, got a state of shape {list(h.shape)}")
        x, y = h.unbind(-1)
        return (x.square() + y - 11).square() + (x + y.square() - 7).square()


@register_energy("log_sum_exp", lambda width, normal: LogSumExp(normal(4, width), normal(4)))
@final
class LogSumExp(AnalyticEnergy):
    r""":math:`V = \tau \log \sum_k \exp((a_k \cdot h + b_k) / \tau)`: a smooth maximum of planes, convex.

    Args:
        slopes: The :math:`a_k`, `[K, d]`.
        offsets: The :math:`b_k`, `[K]`, by default 0.
        temperature: :math:`\tau`.
        systems: How the state is divided, by default into rows.

    >>> import torch
    >>> from lyapflow import LogSumExp
    >>> LogSumExp([[1.0], [-1.0]], temperature=0.01)(torch.tensor([[3.0], [-2.0]]))
    tensor([3., 2.])
    """

    slopes: Tensor
    offsets: Tensor

    def __init__(
        self,
        slopes: Tensor | Sequence[Sequence[float]],
        offsets: Tensor | Sequence[float] | None = None,
        temperature: float = 1.0,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        a = self._store("slopes", slopes)
        if a.ndim != 2:
            raise ValueError(f"slopes must be [K, d], got shape {list(a.shape)}")
        b = self._store("offsets", a.detach().new_zeros(a.shape[0]) if offsets is None else offsets)
        if b.shape != a.shape[:1]:
            raise ValueError(f"offsets must be [{a.shape[0]}], one for each slope, got shape {list(b.shape)}")
        if not temperature > 0:
            raise ValueError(f"temperature must be positive, got {temperature}")
        self.temperature = temperature

    def density(self, h: Tensor) -> Tensor:
        planes = h @ self.slopes.T + self.offsets
        return self.temperature * torch.logsumexp(planes / self.temperature, dim=-1)

    def extra_repr(self) -> str:
        return f"temperature={self.temperature}"
