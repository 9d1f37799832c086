"""Energies that change with time."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from solvers.typing import PerSystem

from ..base import Energy, taken_by


@final
class Annealed(Energy):
    r"""An energy that fades: :math:`V(t, h) = (\rho + (1 - \rho) e^{-\lambda t})\, V(h)`.

    Time alone never raises it as long as :math:`V(h) \ge 0`, so that what holds for a Lyapunov field still does:
    :math:`dV/dt = \partial_t V - \alpha |g|^2 \le 0`. (An energy that grows by itself has no such promise.)

    Args:
        energy: V(h), which must not be negative.
        rate: :math:`\lambda \ge 0`.
        floor: :math:`\rho`, between 0 and 1: what is left in the end.

    >>> import torch
    >>> from lyapflow import Annealed, LyapunovField, Quadratic
    >>> field = LyapunovField(Annealed(Quadratic([2.0]), rate=1.0))
    >>> [round(float(field.energy(t, torch.ones(1, 1))), 4) for t in (0.0, 1.0)]
    [1.0, 0.3679]
    """

    takes = ("t",)

    def __init__(self, energy: Energy, rate: float = 1.0, floor: float = 0.0) -> None:
        super().__init__(energy.systems)
        if not rate >= 0 or not 0 <= floor <= 1:
            raise ValueError(f"rate must not be negative and floor must lie in [0, 1], got {rate} and {floor}")
        self.inner = energy
        self.rate, self.floor = rate, floor

    def forward(self, h: Tensor, t: Tensor) -> PerSystem:  # type: ignore[override]
        known: dict[str, Any] = {"t": t}
        return self.fading(t, h) * self.inner(h, **taken_by(self.inner, known))

    def fading(self, t: Tensor, h: Tensor) -> Tensor:
        """The factor of each system, or one for all."""
        factor = self.floor + (1 - self.floor) * torch.exp(-self.rate * t.to(h.dtype))
        if factor.ndim == 0:
            return factor
        # A time per entry of the state is constant within a system: the mean over its rows is its value.
        rows = factor.reshape(factor.shape[0], -1)[:, 0] if factor.numel() else factor.reshape(-1)
        systems = self.systems.bind(rows)
        return systems.total(rows) / systems.sizes.to(rows.dtype).clamp(min=1)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, floor={self.floor}"
