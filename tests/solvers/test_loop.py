"""The loop: steps, saving, dense output, events, stops, resuming. Stubs stand in where numerics would hide it."""

from __future__ import annotations

import io
import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from solvers import (
    PID,
    Controller,
    Decision,
    EnergyPlateau,
    Fixed,
    Method,
    Rows,
    Segments,
    Status,
    SteadyState,
    Step,
    Stepper,
    Term,
    methods,
    solve,
)
from tests.solvers.problems import Wells

F64 = torch.float64


class CountingMethod(Method):
    """Adds to the state the time that passes: the state is the time, and every step can be read off it."""

    name, order, stages, adaptive = "counting", 1, 1, True

    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        h = term.systems.spread(t1 - t0)
        return Step(t0, t1, h, y0, y0 + h, 1, error=torch.zeros_like(y0))


class Script(Controller):
    """Accepts and rejects by a script, one entry for each try, the same for all systems but for their `phase`."""

    def __init__(self, verdicts: list[bool], dt: float = 1.0) -> None:
        self.verdicts, self.dt = verdicts, dt

    def first_step(self, term: Any, method: Any, t0: Tensor, y0: Any, f0: Any, dt0: Any) -> Tensor:
        return torch.full_like(t0, self.dt)

    def remember(self, dt: Tensor) -> tuple[Tensor, ...]:
        return (torch.zeros_like(dt, dtype=torch.int64),)

    def decide(self, term: Any, method: Any, step: Step, proposal: Tensor, usable: Tensor, memory: Any) -> Decision:
        (n,) = memory
        verdict = torch.tensor(self.verdicts)[n % len(self.verdicts)]
        return Decision(verdict & usable, proposal, (n + 1,))


def still(t: Tensor, y: Tensor) -> Tensor:
    return torch.zeros_like(y)


@given(
    verdicts=st.lists(st.booleans(), min_size=1, max_size=6).filter(any),
    end=st.integers(1, 7),
    dt=st.sampled_from([0.25, 0.5, 1.0, 3.0]),
)
def test_exact_step_counts(verdicts: list[bool], end: int, dt: float) -> None:
    y0 = torch.zeros(1, 1, dtype=F64)
    solution = solve(
        still, y0, 0.0, float(end), method=CountingMethod(), controller=Script(verdicts, dt), saveat="steps", dt0=dt
    )
    needed = math.ceil(end / dt)
    tried, accepted = 0, 0
    while accepted < needed:
        accepted += verdicts[tried % len(verdicts)]
        tried += 1
    assert int(solution.stats["accepted"]) == needed
    assert int(solution.stats["rejected"]) == tried - needed
    assert int(solution.stats["nfe"]) == tried
    assert torch.equal(solution.ts, torch.tensor([min(i * dt, end) for i in range(needed + 1)], dtype=F64))
    assert torch.equal(solution.ys[:, 0, 0], solution.ts)  # nothing of a rejected step is left


@given(dt=st.floats(0.01, 0.7), span=st.floats(0.1, 4), start=st.floats(-100, 100))
def test_fixed_steps_end_exactly_at_the_end_without_slivers(dt: float, span: float, start: float) -> None:
    y0 = torch.zeros(1, 1, dtype=F64)
    general = solve(still, y0, start, start + span, method=CountingMethod(), controller=Fixed(), dt0=dt)
    quick = solve(still, y0, start, start + span, method="euler", dt0=dt)
    steps = (start + span - start) / dt
    for solution in (general, quick):
        assert float(solution.t1) == start + span
        assert steps - 1e-3 <= int(solution.stats["accepted"]) <= steps + 1


# -- saving ---------------------------------------------------------------------------------------------------------


def rotation(t: Tensor, y: Tensor) -> Tensor:
    return torch.stack([y[..., 1], -y[..., 0]], dim=-1)


@pytest.mark.parametrize("name", [name for name, m in methods().items() if not m.dissipative and m.order >= 2])
@pytest.mark.parametrize("reverse", [False, True])
def test_saved_states_and_dense_output_follow_the_solution(name: str, reverse: bool) -> None:
    method = methods()[name]
    start, end = (2.0, 0.0) if reverse else (0.0, 2.0)
    times = torch.linspace(start, end, 9, dtype=F64)[1:]
    y0 = torch.tensor([[math.cos(start), -math.sin(start)], [0.0, 0.0]], dtype=F64)
    settings: dict[str, Any] = {"method": name, "systems": Rows(), "dt0": 0.06}
    if method.adaptive:
        settings["controller"] = PID(1e-5, 1e-6) if method.order == 2 else PID(1e-6, 1e-7)
    solution = solve(rotation, y0, start, end, saveat=times, **settings)
    exact = torch.stack([times.cos(), -times.sin()], dim=-1)
    precision = 1e-2 if method.order == 2 else 2e-4
    assert torch.allclose(solution.ys[:, 0], exact, atol=precision)
    assert torch.equal(solution.ts, times)
    if method.lands:
        with pytest.raises(ValueError, match="dense=True"):
            solve(rotation, y0, start, end, dense=True, **settings)
        return
    dense = solve(rotation, y0, start, end, dense=True, **settings)
    assert torch.allclose(dense(times)[:, 0], exact, atol=precision)
    assert torch.allclose(dense(times), solution.ys, atol=1e-12)
    assert torch.equal(dense(float(start)), y0)
    assert torch.allclose(dense(end), dense.y1)
    assert dense(times.reshape(2, 4)).shape == (2, 4, 2, 2)
    with pytest.raises(ValueError, match="outside"):
        dense(end + (end - start))


def test_what_is_saved_does_not_change_the_trajectory() -> None:
    y0 = torch.tensor([[1.0, 0.0]], dtype=F64)
    plain = solve(rotation, y0, 0.0, 3.0)
    saving = solve(rotation, y0, 0.0, 3.0, saveat=[0.1, 0.2, 0.9, 3.0])
    assert torch.equal(plain.y1, saving.y1)
    assert int(plain.stats["accepted"]) == int(saving.stats["accepted"])


def test_save_times_at_both_ends_and_one_point() -> None:
    y0 = torch.ones(2, dtype=F64)
    for settings in ({"method": "rk4", "dt0": 0.3}, {"method": "dopri5"}, {"method": "implicit_euler", "dt0": 0.3}):
        ys = solve(lambda t, y: -y, y0, 0.0, 1.0, saveat=[0.0, 1.0], **settings).ys
        assert torch.equal(ys[0], y0)
        assert torch.allclose(ys[1], torch.exp(-torch.ones(2, dtype=F64)), atol=0.1)
        assert solve(lambda t, y: -y, y0, 0.5, 0.5, **settings).success
        assert torch.equal(solve(lambda t, y: -y, y0, 0.5, 0.5, **settings).y1, y0)


def test_energies_are_those_of_the_saved_states() -> None:
    field = Wells(torch.ones(2, 1, dtype=F64))
    y0 = torch.randn(2, 2, dtype=F64)
    with torch.no_grad():
        solution = solve(field, y0, 0.0, 1.0, saveat=[0.0, 0.5, 1.0])
        assert solution.energy.shape == (3, 2)
        assert torch.equal(solution.energy[1], field.energy(torch.zeros(()), solution.ys[1]))
    with pytest.raises(AttributeError, match="no energy"):
        solve(rotation, y0, 0.0, 0.1).energy  # noqa: B018


def test_tuple_states_with_many_systems() -> None:
    lam = torch.tensor([1.0, 30.0], dtype=F64)
    index = torch.tensor([0, 1, 1])
    state = (torch.ones(3, 2, dtype=F64), torch.ones(3, dtype=F64), torch.ones(3, 1, 2, dtype=F64))

    def field(t: Tensor, parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        rate = lam[index]
        return tuple(-rate.reshape(-1, *(1,) * (part.ndim - 1)) * part for part in parts)

    solution = solve(field, state, 0.0, 1.0, systems=Segments(index, 2), saveat=[0.5, 1.0], controller=PID(1e-8, 1e-10))
    assert [part.shape for part in solution.y1] == [part.shape for part in state]
    assert solution.ys[2].shape == (2, 3, 1, 2)
    assert torch.allclose(solution.y1[0][:, 0], torch.exp(-lam[index]), atol=1e-7)
    assert solution.stats["accepted"][1] > solution.stats["accepted"][0]


# -- events and stops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rk4", "dopri5", "tsit5", "bosh3", "kvaerno3", "implicit_midpoint", "leapfrog"])
def test_events_end_each_system_at_its_own_time(name: str) -> None:
    """A ball dropped from height q hits the ground at sqrt(2 q); the last one is not done by the end."""
    heights = torch.tensor([[0.5], [2.0], [1e3]], dtype=F64, requires_grad=True)

    def fall(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([y[:, 1], -torch.ones_like(y[:, 1])], dim=-1)

    y0 = torch.cat([heights, torch.zeros_like(heights)], dim=1)
    solution = solve(
        fall, y0, 0.0, 3.0, method=name, dt0=0.1, systems=Rows(), event=lambda t, y: y[:, 0], saveat=[0.9, 1.5, 2.5]
    )
    assert [solution.status_of(i) for i in range(3)] == [Status.EVENT, Status.EVENT, Status.SUCCESS]
    exact = torch.sqrt(2 * heights[:2, 0])
    assert torch.allclose(solution.t1[:2], exact, atol=1e-9)
    assert solution.y1[:2, 0].abs().max() < 1e-9
    # dt/dq = 1 / sqrt(2 q), and the speed at the ground changes likewise
    by_time = torch.autograd.grad(solution.t1[:2].sum(), heights, retain_graph=True)[0]
    by_speed = torch.autograd.grad(solution.y1[:2, 1].sum(), heights, retain_graph=True)[0]
    assert torch.allclose(by_time[:2, 0], 1 / exact, atol=1e-6)
    assert torch.allclose(by_speed[:2, 0], -1 / exact, atol=1e-6)
    assert torch.equal(solution.ys[1, 0], solution.y1[0])  # after its end a system stays where it is
    assert torch.allclose(solution.ys[0, 1, 0], 2 - torch.tensor(0.9, dtype=F64) ** 2 / 2)


def test_an_event_at_the_start_ends_at_once() -> None:
    solution = solve(rotation, torch.tensor([1.0, 0.0]), 0.0, 1.0, event=lambda t, y: y[1])
    assert solution.status_of(0) is Status.EVENT
    assert float(solution.t1) == 0


@pytest.mark.parametrize("name", ["dopri5", "euler", "armijo_euler", "discrete_gradient"])
def test_steady_state_and_energy_plateau(name: str) -> None:
    lam = torch.tensor([[1.0], [10.0]], dtype=F64)
    field = Wells(lam)
    y0 = torch.full((2, 2), 0.8, dtype=F64)
    with torch.no_grad():
        steady = solve(field, y0, 0.0, 1e3, method=name, dt0=0.05, stop=SteadyState(atol=1e-4))
        for i in range(2):
            assert steady.status_of(i) is Status.STOPPED
            speed = field(torch.zeros(()), steady.y1)[i].square().mean().sqrt()
            assert 1e-6 < speed <= 1e-4
        assert steady.t1[1] < steady.t1[0] / 3
        plateau = solve(field, y0, 0.0, 1e3, method=name, dt0=0.05, stop=EnergyPlateau(rtol=0.0, atol=1e-3))
        assert [plateau.status_of(i) for i in range(2)] == [Status.STOPPED] * 2
        assert plateau.y1.abs().max() < 0.2
    with pytest.raises(TypeError, match="energy"):
        solve(rotation, y0, 0.0, 1.0, stop=EnergyPlateau())


def test_step_t_and_jump_t_are_stepped_onto() -> None:
    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.where(t < 0.5, 1.0, -2.0) + 0 * y

    y0 = torch.zeros(1, dtype=F64)
    jumping = solve(field, y0, 0.0, 1.0, jump_t=[0.5], saveat="steps")
    assert 0.5 in jumping.ts.tolist()
    assert math.isclose(float(jumping.y1), -0.5, abs_tol=1e-12)
    assert int(jumping.stats["rejected"]) == 0
    assert {0.3, 0.7} <= set(solve(rotation, torch.ones(2), 0.0, 1.0, step_t=[0.7, 0.3], saveat="steps").ts.tolist())
    backward = solve(field, y0, 1.0, 0.0, jump_t=[0.5])
    assert math.isclose(float(backward.y1), 0.5, abs_tol=1e-12)


# -- controllers ----------------------------------------------------------------------------------------------------


PI, FULL_PID = {"pcoeff": 0.4, "icoeff": 0.3}, {"pcoeff": 0.2, "icoeff": 0.4, "dcoeff": 0.1}


@pytest.mark.parametrize("coefficients", [{}, PI, FULL_PID])
def test_controllers_keep_the_error_near_the_tolerance(coefficients: dict[str, float]) -> None:
    y0 = torch.tensor([[1.0, 0.0]], dtype=F64)
    errors = []
    for rtol in (1e-4, 1e-6, 1e-8):
        y1 = solve(rotation, y0, 0.0, 10.0, controller=PID(rtol, rtol, **coefficients)).y1
        exact = torch.tensor([[math.cos(10), -math.sin(10)]], dtype=F64)
        errors.append(float((y1 - exact).norm()))
        assert errors[-1] < 100 * rtol
    assert errors[2] < errors[1] / 10 < errors[0] / 100


def test_min_and_max_step() -> None:
    y0 = torch.tensor([[1.0, 0.0]], dtype=F64)
    longest = solve(rotation, y0, 0.0, 5.0, controller=PID(1e-2, 1e-2, max_step=0.1), saveat="steps").ts.diff().max()
    assert longest <= 0.1 + 1e-12
    forced = solve(rotation, y0, 0.0, 5.0, controller=PID(1e-13, 1e-13, min_step=0.25), saveat="steps")
    assert forced.success
    assert forced.ts.diff()[:-1].min() >= 0.25 - 1e-12


# -- resuming and progress --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dopri5", "kvaerno3", "relaxed_dopri5", "rk4"])
def test_a_stepper_can_be_left_saved_and_resumed(name: str) -> None:
    field = Wells(torch.tensor([[1.0], [20.0]], dtype=F64))
    y0 = torch.full((2, 2), 0.8, dtype=F64)
    settings: dict[str, Any] = {"method": name, "dt0": 0.03}
    with torch.no_grad():
        whole = solve(field, y0, 0.0, 0.5, saveat="steps", max_steps=None, **settings)
        stepper = Stepper(field, y0, 0.0, 0.5, **settings)
        state = stepper.start()
        for _ in range(3):
            state = stepper.step(state)
        file = io.BytesIO()
        torch.save(stepper.save(state), file)
        file.seek(0)
        other = Stepper(field, y0, 0.0, 0.5, **settings)
        state = other.load(torch.load(file, weights_only=True))
        while not state.done:
            state = other.step(state)
    assert torch.allclose(other.y(state), whole.y1, rtol=1e-12)
    assert torch.equal(state.accepted, whole.stats["accepted"])
    assert torch.equal(other.t(state), whole.t1)
    assert other.step(state) is state
    if name == "dopri5":
        assert torch.equal(other.y(state), whole.y1)


@pytest.mark.parametrize("settings", [{"method": "rk4", "dt0": 0.01}, {"method": "dopri5"}])
def test_progress_is_reported(settings: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[float] = []
    y0 = torch.tensor([[1.0, 0.0]])
    solve(rotation, y0, 0.0, 50.0, progress=seen.append, **settings)
    assert seen[-1] == 1
    assert len(seen) > 3
    assert seen == sorted(seen)
    solve(rotation, y0, 0.0, 1.0, progress=True, **settings)
    assert "100 %" in capsys.readouterr().err


def test_the_quick_loop_and_the_general_one_agree() -> None:
    y0 = torch.randn(3, 2, dtype=F64)
    for name in ("euler", "midpoint", "heun", "ssprk3", "rk4", "dopri5", "leapfrog"):
        settings: dict[str, Any] = {"method": name, "dt0": 0.07, "controller": Fixed(), "systems": Rows()}
        quick = solve(rotation, y0, 0.0, 1.0, saveat=[0.2, 0.55, 1.0], **settings)
        general = solve(rotation, y0, 0.0, 1.0, saveat=[0.2, 0.55, 1.0], step_t=[0.07], **settings)
        assert torch.allclose(quick.ys, general.ys, rtol=1e-12, atol=1e-14)
        assert torch.equal(quick.stats["accepted"], general.stats["accepted"])
        assert quick.stats["nfe"][0] - general.stats["nfe"][0] in (-2, -1, 0)  # what is interpolated may cost more
