"""`torch.compile` of a fixed-step solve in one graph, equal to eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from solvers import Rows, solve

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5"])
def test_fixed_steps_compile_in_one_graph(name: str) -> None:
    from solvers import Fixed

    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    y0 = torch.randn(4, 3, dtype=torch.float64)

    def loss(y: Tensor) -> Tensor:
        solution = solve(
            lambda t, y: net(y) * torch.cos(t), y, 0.0, 0.5, method=name, dt0=0.1, controller=Fixed(), systems=Rows()
        )
        return (solution.y1**2).sum() + solution.status.sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(y0), loss(y0), rtol=1e-12)
    expected = torch.autograd.grad(loss(y0), list(net.parameters()))
    found = torch.autograd.grad(compiled(y0), list(net.parameters()))
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-10)
