"""The fields that the benchmarks integrate."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SmallNetwork(nn.Module):
    """A field as in small neural differential equations: two hidden layers of 64, tanh, a state of 32 x 8."""

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
        self.layers = nn.Sequential(*layers)
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight, gain=gain)
        self.y0 = torch.randn(32, 8)

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        f: Tensor = self.layers(y)
        return f


class PredatorPrey(nn.Module):
    """Lotka and Volterra's equations, in double precision: cheap, nonlinear, with steps of very different sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = nn.Parameter(torch.tensor([1.5, 1.0, 1.0, 3.0], dtype=torch.float64))
        self.y0 = torch.stack([torch.linspace(0.5, 2.0, 32), torch.linspace(1.5, 1.0, 32)], dim=1).double()

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        growth, hunting, feeding, death = self.rates
        prey, predators = y.unbind(-1)
        met = prey * predators
        return torch.stack([growth * prey - hunting * met, feeding * met - death * predators], dim=-1)
