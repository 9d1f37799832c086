"""What the interactive page shows, computed by the library."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lyapflow import DoubleWell, Energy, Himmelblau, LyapunovField, Quadratic, Rosenbrock, Tangent
from solvers import Solution, solve

ENERGIES: dict[str, Energy] = {
    "bowl": Quadratic(torch.tensor([1.0, 50.0], dtype=torch.float64)),
    "double_well": DoubleWell(barrier=1.0),
    "rosenbrock": Rosenbrock(),
    "himmelblau": Himmelblau(),
}
FLOWS = ("gradient", "tangential", "combined")


class QuarterTurn(Tangent):
    """The gradient turned by a right angle."""

    takes = ("gradient",)

    def forward(self, h: Tensor, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.stack([-gradient[:, 1], gradient[:, 0]], dim=1)


def ours(setting: dict[str, Any]) -> Solution[Tensor]:
    """All steps of one of the page's settings."""
    alpha = 0.0 if setting["flow"] == "tangential" else setting["alpha"]
    beta = 0.0 if setting["flow"] == "gradient" else setting["beta"]
    field = LyapunovField(ENERGIES[setting["energy"]], QuarterTurn(), alpha=alpha, beta=beta)
    start = torch.tensor([setting["start"]], dtype=torch.float64)
    given: dict[str, Any] = {"method": setting["method"], "dt0": setting["step"], "saveat": "steps", "throw": False}
    return solve(field, start, 0.0, setting["time"], **given)
