"""Fields that the tests share.

Their formulas are elementwise or add row by row, so that a system's numbers do not depend on the shape of the batch:
what the solvers do to them can be compared bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from solvers import Method, Rows, Segments, Systems


def turned(g: Tensor) -> Tensor:
    """Every pair of entries turned by a right angle, so orthogonal to `g`."""
    return torch.stack([g[..., 1], -g[..., 0]], dim=-1)


class Wells(nn.Module):
    """`y' = -lam (g - spin J g)` with g the gradient of `sum w y^2 / 2 + c y^4 / 4`, for states of width 2.

    The part with J is orthogonal to g, so V falls at the rate `-lam |g|^2`. `lam` has a row for each system.
    """

    def __init__(self, lam: Tensor, spin: float = 0.7, systems: Systems | None = None) -> None:
        super().__init__()
        self.lam = lam
        self.spin = spin
        self.systems = Rows() if systems is None else systems
        self.w = nn.Parameter(torch.tensor([1.0, 0.6], dtype=lam.dtype))
        self.c = nn.Parameter(torch.tensor(0.3, dtype=lam.dtype))

    def gradient(self, y: Tensor) -> Tensor:
        return self.w * y + self.c * y * y * y

    def forward(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
        g = self.gradient(y)
        scale = self.lam if args is None else self.lam * args
        return -scale * (g - self.spin * turned(g))

    def energy(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
        return self.systems.total(self.w * y * y / 2 + self.c * y * y * y * y / 4)


class GraphWells(Wells):
    """Wells at the nodes of graphs, pulled together along the edges: rows of one graph depend on each other."""

    def __init__(self, lam: Tensor, index: Tensor, count: int, edges: Tensor) -> None:
        super().__init__(lam, systems=Segments(index, count))
        self.edges = edges

    def gradient(self, y: Tensor) -> Tensor:
        source, target = self.edges
        pull = y[target] - y[source]
        own = super().gradient(y)
        return own + torch.zeros_like(y).index_add(0, target, pull).index_add(0, source, -pull)

    def energy(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
        source, target = self.edges
        edge = ((y[target] - y[source]) ** 2).sum(-1) / 2
        assert isinstance(self.systems, Segments)
        own = super().energy(t, y)
        return own.index_add(0, self.systems.index[target], edge)


class Springs(nn.Module):
    """`q' = p`, `p' = -lam (w q + c q^3)`: separable, for the symplectic methods. The state's width is 2."""

    def __init__(self, lam: Tensor) -> None:
        super().__init__()
        self.lam = lam
        self.systems = Rows()
        self.w = nn.Parameter(torch.tensor([1.0], dtype=lam.dtype))
        self.c = nn.Parameter(torch.tensor(0.3, dtype=lam.dtype))

    def forward(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
        q, p = y[..., :1], y[..., 1:]
        scale = self.lam if args is None else self.lam * args
        return torch.cat([p, -scale * (self.w * q + self.c * q * q * q)], dim=-1)

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        q, p = y[..., :1], y[..., 1:]
        return (p * p / 2 + self.lam * (self.w * q * q / 2 + self.c * q * q * q * q / 4)).sum(-1)


def field_for(method: Method, lam: Tensor) -> Wells | Springs:
    """A field that the method is made for, a row of `lam` for each system."""
    return Springs(lam) if method.symplectic else Wells(lam)
