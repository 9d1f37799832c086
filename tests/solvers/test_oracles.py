"""Outside truths: problems with known solutions, and bugs that other solvers have had."""

from __future__ import annotations

import math
from typing import Any

import pytest
import scipy.integrate
import torch
from torch import Tensor

from solvers import PID, Fixed, ImplicitRK, Newton, Rows, Status, methods, odeint, solve

ADAPTIVE = [name for name, method in methods().items() if method.adaptive and not method.fixed_by_default]
F64 = torch.float64


class Quarter:
    """`y' = -y^3 / 2`, the gradient flow of `y^4 / 8`."""

    systems = Rows()

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return -(y**3) / 2

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return (y**4 / 8).sum(-1)


class Decay(Quarter):
    """`y' = -y`, the gradient flow of `y^2 / 2`."""

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return -y

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return (y**2 / 2).sum(-1)


def accurate(name: str) -> PID:
    tolerance = {2: 1e-6, 3: 1e-7}.get(methods()[name].order, 1e-8)
    return PID(rtol=tolerance, atol=tolerance * 1e-2)


def closed_form(t: Tensor) -> Tensor:
    s, c = torch.sin(2 * t), torch.cos(2 * t)
    return -(t**4) * c / 2 + t**3 * s / 2 + t**2 * c / 4 - t**3 + 2 * t**4


@pytest.mark.parametrize("name", [name for name in ADAPTIVE if not methods()[name].dissipative])
def test_not_autonomous_closed_form(name: str) -> None:
    # The integration constant of the solution is chosen by its value at t = 1.
    t = torch.linspace(1, 8, 5, dtype=F64)
    start = closed_form(t[:1])

    def field(t: Tensor, y: Tensor) -> Tensor:
        return 2 * y / t + t**4 * torch.sin(2 * t) - t**2 + 4 * t**3

    ys = solve(field, start, 1.0, 8.0, method=name, controller=accurate(name), saveat=t).ys
    tolerance = 1e-3 if methods()[name].order == 2 else 1e-5
    assert torch.allclose(ys[:, 0], closed_form(t), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize(
    ("field", "truth"), [(Decay(), lambda t: math.exp(-t)), (Quarter(), lambda t: 1 / math.sqrt(1 + t))]
)
def test_gradient_flows(name: str, field: Quarter, truth: object) -> None:
    y0 = torch.ones(1, 1, dtype=F64)
    solution = solve(field, y0, 0.0, 2.0, method=name, controller=accurate(name), saveat=[0.5, 2.0])
    for t, y in zip(solution.ts, solution.ys, strict=True):
        assert math.isclose(float(y), truth(float(t)), rel_tol={2: 3e-4, 3: 2e-6}.get(methods()[name].order, 2e-7))


@pytest.mark.parametrize("name", ["dopri5", "tsit5", "dopri8", "kvaerno3", "implicit_midpoint"])
def test_skew_systems_turn_without_growing(name: str) -> None:
    r = torch.randn(10, 10, dtype=F64)
    skew = (r - r.T) / 4
    y0 = torch.randn(10, dtype=F64)
    method = methods()[name]
    settings = {"controller": PID(1e-6, 1e-8)} if method.adaptive else {"dt0": 0.01}
    y1 = solve(lambda t, y: skew @ y, y0, 0.0, 2.0, method=name, **settings).y1
    exact = torch.linalg.matrix_exp(2 * skew) @ y0
    assert torch.allclose(y1, exact, atol=1e-3 if name == "implicit_midpoint" else 1e-5)
    # The implicit midpoint rule conserves quadratic invariants exactly.
    precision = 1e-11 if name == "implicit_midpoint" else 1e-5
    assert math.isclose(float(y1.norm()), float(y0.norm()), rel_tol=precision)


@pytest.mark.parametrize("name", ["euler", "rk4", "dopri5", "kvaerno3", "armijo_euler", "discrete_gradient"])
def test_diffusion_on_a_path_keeps_its_mass_and_smooths(name: str) -> None:
    laplacian = torch.tensor([[1.0, -1.0, 0.0], [-1.0, 2.0, -1.0], [0.0, -1.0, 1.0]], dtype=F64)

    class Diffusion:
        systems = Rows()

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            return -y @ laplacian

        def energy(self, t: Tensor, y: Tensor) -> Tensor:
            return ((y @ laplacian) * y).sum(-1) / 2

    y0 = torch.tensor([[1.0, 0.0, 0.0]], dtype=F64)
    solution = solve(Diffusion(), y0, 0.0, 5.0, method=name, dt0=0.1, saveat="steps")
    assert torch.allclose(solution.ys.sum(-1), torch.ones(1, dtype=F64), atol=1e-12)
    assert (solution.energy.diff(dim=0) <= 1e-15).all()


@pytest.mark.parametrize("name", ["bosh3", "dopri5", "tsit5", "dopri8"])
def test_scipy_agrees_on_a_nonlinear_system(name: str) -> None:
    def lotka_volterra(t: float, y: list[float]) -> list[float]:
        return [1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]]

    expected = scipy.integrate.solve_ivp(lotka_volterra, (0, 4), [10.0, 5.0], rtol=1e-10, atol=1e-12).y[:, -1]

    def field(t: Tensor, y: Tensor) -> Tensor:
        return torch.stack([1.5 * y[0] - y[0] * y[1], -3 * y[1] + y[0] * y[1]])

    y1 = solve(field, torch.tensor([10.0, 5.0], dtype=F64), 0.0, 4.0, method=name, controller=PID(1e-7, 1e-8)).y1
    assert torch.allclose(y1, torch.from_numpy(expected), rtol=1e-4)


def test_stiff_systems_take_few_implicit_steps() -> None:
    """Prothero and Robinson's problem: explicit methods need steps like 1 / 1e5."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -1e5 * (y - torch.cos(t)) - torch.sin(t)

    y0 = torch.ones(1, dtype=F64)
    implicit = solve(field, y0, 0.0, 1.0, method="kvaerno3", controller=PID(1e-5, 1e-7))
    assert math.isclose(float(implicit.y1), math.cos(1), rel_tol=1e-4)
    assert int(implicit.stats["steps"]) < 200
    explicit = solve(field, y0, 0.0, 1.0, method="dopri5", controller=PID(1e-5, 1e-7), max_steps=2000, throw=False)
    assert explicit.status_of(0) is Status.MAX_STEPS


def test_nonlinear_solve_that_fails_is_reported_or_retried() -> None:
    """`y' = -10 y^3` with a step of 1: a Newton that stops early fails; full Newton and smaller steps succeed."""
    method = methods()["implicit_euler"]
    assert isinstance(method, ImplicitRK)
    hasty = method.with_newton(Newton(max_iterations=3))
    y0 = torch.ones(1, dtype=F64)

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -10 * y**3

    fixed = solve(field, y0, 0.0, 1.0, method=hasty, dt0=1.0, throw=False)
    assert fixed.status_of(0) is Status.NOT_CONVERGED
    assert float(fixed.t1) == 0
    assert torch.equal(fixed.y1, y0)
    adaptive = solve(field, y0, 0.0, 1.0, method=hasty, dt0=1.0, controller=PID(1e-4, 1e-6))
    assert adaptive.success
    assert int(adaptive.stats["rejected"]) > 0
    assert math.isclose(float(adaptive.y1), 1 / math.sqrt(21), rel_tol=1e-2)
    root = solve(field, y0, 0.0, 1.0, method="implicit_euler", dt0=1.0).y1
    assert math.isclose(float(root + 10 * root**3), 1.0, rel_tol=1e-10)


@pytest.mark.parametrize("name", ["leapfrog", "yoshida4"])
def test_symplectic_energy_errors_do_not_grow(name: str) -> None:
    def pendulum(t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        q, p = state
        return p, -torch.sin(q)

    def energy(q: Tensor, p: Tensor) -> Tensor:
        return p**2 / 2 - torch.cos(q)

    y0 = (torch.tensor([1.0], dtype=F64), torch.tensor([0.0], dtype=F64))
    q, p = solve(pendulum, y0, 0.0, 500.0, method=name, dt0=0.1, saveat="steps").ys
    error = (energy(q, p) - energy(*y0)).abs()
    assert error[4000:].max() < 1.2 * error[:500].max() < 1e-2
    q, p = solve(pendulum, y0, 0.0, 500.0, method="heun", dt0=0.1, saveat="steps").ys
    growing = (energy(q, p) - energy(*y0)).abs()
    assert growing[4000:].max() > 5 * growing[:500].max()


# -- bugs that others shipped ------------------------------------------------------------------------------------------


def test_float32_reaches_a_far_end_without_retrying_one_step_for_ever() -> None:
    solution = solve(lambda t, y: -y, torch.ones(1), 0.0, 600.0, max_steps=5000)
    assert float(solution.t1) == 600


def test_an_event_does_not_fire_on_a_rejected_step() -> None:
    """The first, huge step would jump over the barrier at 0.5 and is rejected; the true solution never gets there."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return 0.4 * torch.cos(t) - 50 * (y - 0.4 * torch.sin(t))

    tried = []

    def event(t: Tensor, y: Tensor) -> Tensor:
        tried.append(float(y.abs()))
        return 0.5 - y.abs()

    y0 = torch.zeros(1, dtype=F64)
    solution = solve(field, y0, 0.0, 3.0, dt0=1.0, event=event, controller=PID(1e-6, 1e-8))
    assert int(solution.stats["rejected"]) > 0
    assert max(tried) > 0.5  # a rejected step was beyond the barrier
    assert solution.status_of(0) is Status.SUCCESS


def test_an_endless_loop_on_a_nan_error_ends() -> None:
    def field(t: Tensor, y: Tensor) -> Tensor:
        return -0.1 - torch.sqrt(y - 0.5)

    solution = solve(field, torch.ones(1, dtype=F64), 0.0, 5.0, throw=False)
    assert solution.status_of(0) is Status.NON_FINITE
    assert int(solution.stats["steps"]) < 200


def test_a_step_of_a_few_units_in_the_last_place_is_not_retried_for_ever() -> None:
    """Where the solution explodes, the size that was rejected comes back by the rounding of the time."""
    y0 = torch.tensor([2.0], dtype=F64)
    for name in ("bosh3", "dopri5", "dopri8"):
        settings: dict[str, Any] = {"controller": PID(1e-4, 1e-6), "throw": False, "max_steps": 20_000}
        solution = solve(lambda t, y: y**2, y0, 0.0, 1.0, method=name, **settings)
        assert solution.status_of(0) in (Status.STEP_TOO_SMALL, Status.NON_FINITE, Status.NOT_CONVERGED), name
        assert math.isclose(float(solution.t1), 0.5, abs_tol=1e-3)


def test_two_stiffnesses_take_different_step_counts() -> None:
    lam = torch.tensor([[1.0], [500.0]], dtype=F64)
    counts = solve(lambda t, y: -lam * y, torch.ones(2, 1, dtype=F64), 0.0, 1.0, systems=Rows()).stats["accepted"]
    assert counts[1] > 5 * counts[0]


def test_as_quick_as_a_loop_in_evaluations() -> None:
    """torchdiffeq's issue 278: a fixed step size costs exactly the evaluations of the method."""
    calls = 0

    def field(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return -y

    for name, stages in (("euler", 1), ("midpoint", 2), ("rk4", 4)):
        calls = 0
        odeint(field, torch.ones(1), torch.linspace(0, 1, 11), method=name)
        assert calls == 10 * stages
    solution = solve(field, torch.ones(1), 0.0, 1.0, method="rk4", dt0=0.1, controller=Fixed())
    assert int(solution.stats["nfe"]) == 40
