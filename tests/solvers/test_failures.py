"""Wrong input is explained before any work is done; failures name the system, the place, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from solvers import (
    PID,
    ExplicitRK,
    Fixed,
    ImplicitTableau,
    Rows,
    Segments,
    SolveError,
    Status,
    Tableau,
    methods,
    register,
    solve,
)


def decay(t: Tensor, y: Tensor) -> Tensor:
    return -y


Y0 = torch.ones(2, 2)
CALL: dict[str, Any] = {"field": decay, "y0": Y0, "t0": 0.0, "t1": 1.0}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"field": 3}, TypeError, "field must be callable"),
        ({"y0": [1.0, 2.0]}, TypeError, "y0 must be a tensor or a tuple of tensors, got float"),
        ({"y0": torch.ones(2, dtype=torch.int64)}, TypeError, r"y0 must be of a floating point.*int64"),
        ({"y0": ()}, ValueError, "y0 is an empty tuple"),
        ({"y0": (torch.ones(2), torch.ones(3)), "systems": Rows()}, ValueError, "same first dimension"),
        ({"t0": "now"}, TypeError, "t0 must be a number"),
        ({"t1": float("inf")}, ValueError, "t1 must be finite"),
        ({"t1": torch.ones(2)}, TypeError, "t1 must be a number or a tensor with one element"),
        ({"method": "dopri6"}, ValueError, r"unknown method 'dopri6'.*; known are: .*dopri5.*register"),
        ({"method": "rk4"}, ValueError, r"'rk4' takes steps of a fixed size: give dt0"),
        ({"dt0": -0.1}, ValueError, "dt0 must be positive"),
        ({"dt0": 0.0}, ValueError, "dt0 must be positive"),
        ({"dt0": float("nan")}, ValueError, "dt0 must be finite"),
        ({"method": "rk4", "dt0": 0.1, "controller": PID()}, ValueError, "'rk4' has no error estimate"),
        ({"controller": "pid"}, TypeError, "controller must be"),
        ({"adjoint": "direct"}, TypeError, "adjoint must be"),
        ({"saveat": "all"}, ValueError, 'saveat must be None, times, or "steps"'),
        ({"saveat": [0.5, 0.5]}, ValueError, "saveat must run strictly"),
        ({"saveat": [0.5, 0.2]}, ValueError, "saveat must run strictly"),
        ({"saveat": [0.5, 1.2]}, ValueError, r"saveat must lie between t0 and t1, got 0\.5 to 1\.2"),
        ({"saveat": torch.zeros(2, 2)}, ValueError, "saveat must be one-dimensional"),
        ({"systems": "rows"}, TypeError, "systems must be Single"),
        ({"systems": Segments(torch.tensor([0, 1, 1]), 2)}, ValueError, "index has 3 entries, but the state is 2 rows"),
        ({"max_steps": 0}, ValueError, "max_steps must be at least 1"),
        ({"step_t": [0.5], "jump_t": [0.5]}, ValueError, "step_t and jump_t"),
        ({"method": "armijo_euler", "dt0": 0.1}, TypeError, r"'armijo_euler' needs a field with energy\(t, y\)"),
        ({"method": "leapfrog", "dt0": 0.1, "y0": torch.ones(3)}, ValueError, "positions and momenta"),
        ({"event": lambda t, y: y}, ValueError, r"event\(t, y\) must return one value for each of the 1 systems"),
        ({"field": lambda t, y: y[:1]}, ValueError, r"must return a tensor of shape \[2, 2\].*got shape \[1, 2\]"),
        ({"field": lambda t, y: y.long()}, ValueError, r"float32.*got shape \[2, 2\], torch.int64"),
        ({"field": lambda t, y: 0.0}, TypeError, "must return a tensor of shape.*got float"),
        ({"y0": (Y0, Y0), "field": lambda t, y: y[0]}, TypeError, "must return a tuple of tensors of shapes"),
        ({"y0": (Y0, Y0), "field": lambda t, y: (y[0], y[1][:1])}, ValueError, r"returned shapes .*\[1, 2\]"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        solve(**{**CALL, **change})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rtol": -1.0}, "rtol must not be negative"),
        ({"atol": -1e-9}, "atol must not be negative"),
        ({"rtol": float("nan")}, "rtol must not be negative"),
        ({"atol": torch.tensor([1e-3, -1e-3])}, "atol must not be negative"),
        ({"rtol": torch.tensor(1e-3, requires_grad=True)}, "rtol cannot require gradient"),
        ({"rtol": 0.0, "atol": 0.0}, "both 0"),
        ({"dfactor": 1.2}, "0 < dfactor < 1 < ifactor"),
        ({"ifactor": 0.9}, "0 < dfactor < 1 < ifactor"),
        ({"safety": 0.0}, "safety"),
        ({"min_step": 1.0, "max_step": 0.1}, "min_step <= max_step"),
    ],
)
def test_wrong_controllers_are_explained(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PID(**settings)


def test_energy_of_the_wrong_shape_is_explained() -> None:
    class Field:
        systems = Rows()

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return -y

        def energy(self, t: Tensor, y: Tensor) -> Tensor:
            return (y**2).sum()

    with pytest.raises(ValueError, match=r"one value for each of the 2 systems, got a tensor of shape \[\]"):
        solve(Field(), Y0, 0.0, 1.0, method="armijo_euler", dt0=0.1)
    with pytest.raises(TypeError, match="needs a real state"):
        solve(Field(), Y0.to(torch.complex64), 0.0, 1.0, method="armijo_euler", dt0=0.1)


def test_tableaus_are_checked_and_names_are_not_taken_twice() -> None:
    with pytest.raises(ValueError, match="row i of `a`"):
        Tableau(a=((1.0, 2.0),), b=(0.5, 0.5), order=2)
    with pytest.raises(ValueError, match="`b` must have 2 entries"):
        Tableau(a=((1.0,),), b=(1.0,), order=1)
    with pytest.raises(ValueError, match="sum to 1"):
        Tableau(a=((1.0,),), b=(0.5, 0.6), order=2)
    with pytest.raises(ValueError, match="row i of `a`"):
        ImplicitTableau(a=((1.0, 0.0),), b=(1.0,), order=1)
    with pytest.raises(ValueError, match="sum to 1"):
        ImplicitTableau(a=((1.0,),), b=(2.0,), order=1)
    other = ExplicitRK("rk4", Tableau(a=(), b=(1.0,), order=1))
    with pytest.raises(ValueError, match="'rk4' is registered already; pass replace=True"):
        register(other)
    with pytest.raises(TypeError, match="only a Method"):
        register("rk4")  # type: ignore[arg-type]
    before = methods()["rk4"]
    register(other, replace=True)
    assert methods()["rk4"] is other
    register(before, replace=True)


def test_the_registry_prints_as_a_table() -> None:
    lines = str(methods()).splitlines()
    assert lines[0].split() == ["name", "order", "stages", "adaptive", "implicit", "dissipative", "symplectic"]
    assert ["kvaerno3", "3", "4", "yes", "yes", "-", "-"] in [line.split() for line in lines]


def explosive(t: Tensor, y: Tensor) -> Tensor:
    return y**2


def test_errors_name_system_place_and_advice() -> None:
    y0 = torch.tensor([[0.1], [2.0], [0.2]], dtype=torch.float64)  # the second one explodes at t = 0.5
    with pytest.raises(SolveError, match=r"in system 1 at t=0\.50\d*, dt=.*\|f\|=.*: ") as caught:
        solve(explosive, y0, 0.0, 1.0, systems=Rows())
    assert caught.value.status.tolist()[::2] == [int(Status.SUCCESS)] * 2
    assert "system 0" not in str(caught.value)
    many = torch.full((9, 1), 2.0, dtype=torch.float64)
    with pytest.raises(SolveError, match="and 4 more systems"):
        solve(explosive, many, 0.0, 1.0, systems=Rows())


def test_a_failed_system_freezes_and_the_rest_goes_on() -> None:
    y0 = torch.tensor([[0.1], [2.0], [0.2]], dtype=torch.float64)
    for settings in ({"method": "dopri5"}, {"method": "euler", "dt0": 0.01}, {"method": "bosh3"}):
        solution = solve(explosive, y0, 0.0, 1.0, systems=Rows(), throw=False, saveat=[0.25, 0.75, 1.0], **settings)
        assert not solution.success
        assert solution.status_of(1).failed
        assert torch.isfinite(solution.ys).all()
        assert torch.equal(solution.ys[1, 1], solution.y1[1])
        exact = y0[::2] / (1 - y0[::2])
        assert torch.allclose(solution.y1[::2], exact, rtol=2e-2)


def test_statuses_have_advice() -> None:
    for status in Status:
        assert status.summary
        assert status.advice
        assert status.failed == (status not in (Status.RUNNING, Status.SUCCESS, Status.EVENT, Status.STOPPED))


def test_an_initial_state_that_is_not_finite_fails_alone() -> None:
    y0 = torch.tensor([[1.0], [float("nan")]])
    for settings in ({"method": "dopri5"}, {"method": "rk4", "dt0": 0.1}, {"method": "kvaerno3"}):
        solution = solve(decay, y0, 0.0, 1.0, systems=Rows(), throw=False, **settings)
        assert [solution.status_of(i) for i in (0, 1)] == [Status.SUCCESS, Status.NON_FINITE]
        assert float(solution.t1[1]) == 0


def test_empty_batches_and_empty_systems() -> None:
    for settings in ({"method": "dopri5"}, {"method": "rk4", "dt0": 0.1}, {"method": "kvaerno3"}):
        nothing = solve(decay, torch.ones(0, 2), 0.0, 1.0, systems=Rows(), **settings)
        assert nothing.y1.shape == (0, 2)
        assert nothing.status.shape == (0,)
        gap = Segments(torch.tensor([0, 2]), 3)  # the second system has no rows
        solution = solve(decay, torch.ones(2, 1), 0.0, 1.0, systems=gap, **settings)
        assert solution.success
        assert torch.allclose(solution.y1, torch.exp(torch.tensor(-1.0)), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5", "dopri8", "kvaerno3", "implicit_midpoint"])
def test_complex_states(name: str, dtype: torch.dtype) -> None:
    y0 = torch.tensor([1.0 + 0.5j], dtype=dtype)
    settings: dict[str, Any] = {"dt0": 0.01, "controller": Fixed()}
    y1 = solve(lambda t, y: 1j * y, y0, 0.0, 1.0, method=name, **settings).y1
    exact = y0 * torch.exp(torch.tensor(1j, dtype=dtype))
    assert y1.dtype == dtype
    assert torch.allclose(y1, exact, atol=2e-2 if name == "euler" else 1e-4)


def test_a_very_long_time_is_not_written_out() -> None:
    """1e11 steps of which ten are taken: the time grid would not fit into any memory."""
    solution = solve(
        lambda t, y: -y, torch.ones(1), 0.0, 1e9, method="euler", dt0=0.01, max_steps=10, throw=False
    )  # fmt: skip
    assert solution.status_of(0) == Status.MAX_STEPS
    assert float(solution.t1) == pytest.approx(0.1)
