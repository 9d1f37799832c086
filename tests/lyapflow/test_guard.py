"""Guarded flows: no field, state, division, precision or step size makes a step raise the energy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lyapflow import Annealed, Flow, LyapunovField, MLPEnergy, MLPTangent, Quadratic
from lyapflow.inspection import inspect_field
from lyapflow.testing import divided_states, fields
from solvers import Checkpointed, rises


@given(st.data(), st.floats(-3, 3), st.sampled_from(["euler", "heun", "rk4"]))
def test_no_step_of_a_guarded_flow_raises_the_energy(data: st.DataObject, power: float, method: str) -> None:
    division, h = data.draw(divided_states(scales=(1e-3, 1e3)))
    field = data.draw(fields(h.shape[1], h.dtype, division))
    flow = Flow(field, method, steps=3, step_size=10.0**power, guard=True)
    solution = flow.solve(h, saveat="steps", throw=False)
    well = solution.status == 1
    # Looked at by another path through the field, so that rounding is that of certificates.
    seen = [inspect_field(field, 0.0, y, division.bind(h)) for y in solution.ys]
    energy, allowed = torch.stack([one.energy for one in seen]), torch.stack([one.rounding for one in seen])
    assert bool((energy.diff(dim=0) <= allowed[:-1])[:, well].all())
    assert not bool(rises(solution.energy)[:, well].any())


def test_where_euler_rises_the_guard_does_not() -> None:
    torch.manual_seed(0)
    field, h = LyapunovField(MLPEnergy(4), MLPTangent(4), beta=3.0), torch.randn(64, 4)
    plain, guarded = (Flow(field, steps=8, step_size=1.0, guard=guard) for guard in (False, True))
    assert bool(rises(plain.take_steps(h).energy).any())
    assert not bool(rises(guarded.take_steps(h).energy).any())
    assert torch.equal(guarded(h), guarded.solve(h).y1)
    torch.testing.assert_close(plain(h), plain.take_steps(h).y1)


def test_a_guarded_flow_is_a_layer_that_learns() -> None:
    torch.manual_seed(0)
    field = LyapunovField(MLPEnergy(2, 8), MLPTangent(2, 8))
    flow = Flow(field, steps=4, step_size=1.0, guard=True, adjoint=Checkpointed(every=1))
    h = torch.randn(32, 2)
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        loss = (flow(h) - torch.tensor([1.0, 0.0])).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_a_timed_energy() -> None:
    field = LyapunovField(Annealed(Quadratic([1.0, 4.0]), rate=0.5))
    assert field.energy_is_timed
    solution = Flow(field, steps=4, step_size=0.4, guard=True).solve(torch.ones(2, 2), saveat="steps")
    for k, (before, after) in enumerate(zip(solution.ys[:-1], solution.ys[1:], strict=True)):
        assert bool((field.energy(0.4 * k, after) <= field.energy(0.4 * k, before)).all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "armijo_euler"}, "guard=True takes a given number of steps of an explicit method"),
        ({"method": "dopri5", "steps": None, "step_size": None, "time": 1.0}, "got method='dopri5', step_size=None"),
        ({"max_steps": 3}, "without controller and max_steps"),
        ({"backend": "torchdiffeq", "method": "euler"}, 'guard is for backend="solvers"'),
        ({"field": lambda t, h: -h}, "guard=True needs a field with energy"),
    ],
)
def test_wrong_arguments_are_named(settings: dict[str, Any], message: str) -> None:
    given = {"field": LyapunovField(Quadratic([1.0])), "steps": 2, "step_size": 0.1, "guard": True} | settings
    with pytest.raises((ValueError, TypeError), match=message):
        Flow(**given)


def test_a_guarded_flow_saves_steps_and_nothing_between() -> None:
    flow = Flow(LyapunovField(Quadratic([1.0])), steps=2, step_size=0.1, guard=True)
    assert "guard=True" in repr(flow)
    with pytest.raises(ValueError, match="saveat='steps'"):
        flow.solve(torch.ones(1, 1), saveat=[0.05])
