"""Descent as an objective and as a count."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lyapflow import DescentCount, Flow, LyapunovField, MLPEnergy, MLPTangent, Quadratic, descent_loss


@given(st.integers(1, 5), st.integers(0, 4), st.floats(-6, 6), st.floats(0, 1), st.integers(0, 99))
def test_the_loss_is_the_mean_of_what_is_missing(
    steps: int, systems: int, power: float, margin: float, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    energy = 10**power * torch.randn(steps + 1, systems, generator=random, dtype=torch.float64)
    wanted = sum(
        max(0.0, float((energy[k + 1, s] - energy[k, s]) / energy[k, s].abs()) + margin)
        for k in range(steps)
        for s in range(systems)
    )
    assert float(descent_loss(energy, margin)) == pytest.approx(wanted / max(1, steps * systems), rel=1e-9, abs=1e-12)


def test_no_loss_where_every_step_falls_by_the_margin() -> None:
    falling = torch.tensor([[1.0], [0.9], [0.8]])
    assert float(descent_loss(falling, margin=0.1)) == 0.0
    assert float(descent_loss(falling, margin=0.2)) > 0.0


def test_an_energy_of_zero_has_a_finite_loss_and_gradient() -> None:
    energy = torch.tensor([[0.0], [0.0], [0.0]], requires_grad=True)
    loss = descent_loss(energy)
    loss.backward()
    assert bool(loss.isfinite())
    assert energy.grad is not None


@pytest.mark.parametrize(
    ("energy", "margin", "message"),
    [
        (torch.ones(3), 0.1, r"energy must have shape \[N \+ 1, S\]"),
        (torch.ones(1, 3), 0.1, r"with N > 0 steps, got \[1, 3\]"),
        (torch.ones(2, 3), -0.1, "margin must be 0 or more, got -0.1"),
    ],
)
def test_wrong_arguments_are_named(energy: torch.Tensor, margin: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        descent_loss(energy, margin)


def test_a_flow_learns_to_descend() -> None:
    torch.manual_seed(0)
    flow = Flow(LyapunovField(MLPEnergy(4), MLPTangent(4), beta=5.0), steps=5, step_size=1.0)
    h = torch.randn(128, 4)
    before = DescentCount.of(flow.take_steps(h))
    assert before.rising_systems > 10
    optimizer = torch.optim.Adam(flow.parameters(), lr=3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        descent_loss(flow.take_steps(h).energy).backward()
        optimizer.step()
    after = DescentCount.of(flow.take_steps(torch.randn(128, 4)))  # on states that were not trained with
    assert after.rising_systems < before.rising_systems / 5


def test_counts_add_up() -> None:
    flow = Flow(LyapunovField(Quadratic([9.0])), steps=2, step_size=0.25)
    some, more = DescentCount.of(flow.take_steps(torch.ones(3, 1))), DescentCount.of(flow.take_steps(torch.ones(4, 1)))
    assert some + more == DescentCount(7, 14, 7, 14, 0)
    assert str(DescentCount(1280, 6400)) == "HOLDS: the energy rises in 0 of 1,280 systems, in 0 of 6,400 steps"
    assert DescentCount(1, 2, 1, 1).sentence("graphs").startswith("VIOLATED: the energy rises in 1 of 1 graphs")
