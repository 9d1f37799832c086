"""Dissipative methods never raise the energy, whatever step size they are given."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from solvers import (
    PID,
    DiscreteGradient,
    EnergyPlateau,
    Fixed,
    Newton,
    Rows,
    Segments,
    Status,
    Systems,
    methods,
    odeint,
    solve,
)
from tests.solvers.problems import Wells, turned

DISSIPATIVE = [name for name, method in methods().items() if method.dissipative]
every_dissipative = pytest.mark.parametrize("name", DISSIPATIVE)


class RandomField:
    """A random smooth energy, and `-alpha grad V` plus a random direction made orthogonal to the gradient.

    V is a sum over a system's rows of bowls, log-sum-exp ridges and cosine bumps, so that it may have many minima and
    saddles, and, with `coupling`, a term between neighbouring rows.
    """

    def __init__(self, seed: int, width: int, systems: Systems, dtype: torch.dtype, scale: float, coupling: Tensor):
        random = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

        self.systems = systems
        self.bowl = draw(width).abs() * 10 ** float(2 * torch.rand(1, generator=random) - 1)
        self.ridges, self.heights = draw(4, width), draw(4)
        self.bumps = draw(width) * float(torch.rand(1, generator=random))
        self.mix = draw(width, width)
        self.alpha, self.beta = float(draw(1).abs()), 3 * float(draw(1))
        self.scale = scale  # of the energy
        self.coupling = coupling  # [2, edges]

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        ridges = torch.logsumexp(y.unsqueeze(-2) * self.ridges + self.heights.unsqueeze(-1), dim=-2)
        local = self.bowl * y * y / 2 + ridges + self.bumps * torch.cos(3 * y)
        total = self.systems.total(local)
        if self.coupling.numel():
            a, b = self.coupling
            pull = torch.zeros_like(y).index_add(0, a, (y[a] - y[b]) ** 2)
            total = total + self.systems.total(pull)
        return self.scale * total

    def gradient(self, y: Tensor) -> Tensor:
        with torch.enable_grad():
            point = y if y.requires_grad else y.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.energy(torch.zeros(()), point).sum(), point, create_graph=True)
        return gradient

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        gradient = self.gradient(y)
        direction = torch.tanh(y @ self.mix)
        for _ in range(2):
            square = self.systems.inner(gradient, gradient)
            share = self.systems.inner(direction, gradient) / torch.where(square > 0, square, 1.0)
            direction = direction - self.systems.spread(share) * gradient
        return -self.alpha * gradient + self.beta * direction


@st.composite
def random_problems(draw: Any) -> tuple[RandomField, Tensor, float]:
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    width = draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**20))
    random = torch.Generator().manual_seed(seed)
    edges = torch.zeros(2, 0, dtype=torch.int64)
    if draw(st.booleans()):
        rows = draw(st.integers(1, 5))
        systems: Systems = Rows()
    else:  # graphs of different sizes, some of one node, one of none
        sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(sum))
        index = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        rows, systems = len(index), Segments(index, len(sizes))
        same = (index[:-1] == index[1:]).nonzero().flatten()
        edges = torch.stack([same, same + 1])
    spread = 10 ** draw(st.floats(-2, 1))
    y0 = (spread * torch.randn(rows, width, generator=random, dtype=torch.float64)).to(dtype)
    scale = 10 ** draw(st.floats(-3, 3))
    dt = 10 ** draw(st.floats(-3, 3))
    return RandomField(seed, width, systems.bind(y0), dtype, scale, edges), y0, dt


def rounding_of(field: RandomField, y: Tensor) -> Tensor:
    """What rounding does to the energy: to its terms, and through the rounding of the state."""
    terms = field.scale * field.systems.total(field.bowl * y * y / 2 + y.abs() + 10)
    through_state = field.systems.total((field.gradient(y).detach() * y).abs())
    return 32 * torch.finfo(y.dtype).eps * (terms + through_state)


@every_dissipative
@given(problem=random_problems())
def test_energy_never_rises(name: str, problem: tuple[RandomField, Tensor, float]) -> None:
    field, y0, dt = problem
    with torch.no_grad():
        solution = solve(
            field, y0, 0.0, 2 * dt, method=name, dt0=dt, saveat="steps", max_steps=3, throw=False, controller=Fixed()
        )
    energy = solution.energy.reshape(len(solution.ts), -1)
    assert torch.isfinite(energy).all()
    assert set(solution.status.tolist()) <= {int(Status.SUCCESS), int(Status.MAX_STEPS)}
    for before, after, y in zip(energy, energy[1:], solution.ys, strict=False):
        assert (after - before <= rounding_of(field, y)).all()
    assert (solution.t1 > 0).all()


@given(problem=random_problems())
def test_adaptive_relaxation_never_raises_the_energy(problem: tuple[RandomField, Tensor, float]) -> None:
    field, y0, dt = problem
    with torch.no_grad():
        solution = solve(
            field,
            y0,
            0.0,
            3 * dt,
            method="relaxed_dopri5",
            dt0=dt,
            saveat="steps",
            max_steps=6,
            throw=False,
            controller=PID(1e-2, 1e-3),
        )
    energy = solution.energy.reshape(len(solution.ts), -1)
    for before, after, y in zip(energy, energy[1:], solution.ys, strict=False):
        assert (after - before <= rounding_of(field, y)).all()


# -- DETEST C3, a gradient flow whose critical step is known ------------------------------------------------------

A = torch.diag(torch.full((10,), -2.0, dtype=torch.float64))
A = A + torch.diag(torch.ones(9, dtype=torch.float64), 1) + torch.diag(torch.ones(9, dtype=torch.float64), -1)


class C3:
    systems = Rows()

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return y @ A

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return -((y @ A) * y).sum(-1) / 2


TOP = torch.linalg.eigh(A).eigenvectors[:, :1].T  # the direction of the largest curvature
LARGEST = float(-torch.linalg.eigvalsh(A)[0])


def first_ratio(method: str, dt: float, y0: Tensor) -> float:
    once = {"controller": Fixed(), "saveat": "steps", "max_steps": 1, "throw": False}
    energy = solve(C3(), y0, 0.0, dt, method=method, dt0=dt, **once).energy
    return float(energy[1] / energy[0])


def test_euler_rises_beyond_the_critical_step_and_not_below_it() -> None:
    critical = 2 / LARGEST
    assert math.isclose(critical, 0.510336, rel_tol=1e-6)
    assert math.isclose(first_ratio("euler", 1.01 * critical, TOP), 1.0404, rel_tol=1e-4)
    assert math.isclose(first_ratio("euler", 0.99 * critical, TOP), 0.9604, rel_tol=1e-4)


@every_dissipative
def test_dissipative_methods_do_not_rise_beyond_the_critical_step(name: str) -> None:
    for factor in (0.99, 1.01, 3.0, 1e3, 1e6):
        assert first_ratio(name, factor * 2 / LARGEST, TOP) < 1


@given(factor=st.floats(1.05, 50), seed=st.integers(0, 1000))
def test_euler_rises_in_the_end_beyond_the_critical_step_from_anywhere(factor: float, seed: int) -> None:
    y0 = torch.randn(1, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    dt = factor * 2 / LARGEST
    energy = solve(C3(), y0, 0.0, 400 * dt, method="euler", dt0=dt, saveat="steps", throw=False).energy
    assert (energy[1:] > energy[:-1]).any()


# -- what the single methods promise --------------------------------------------------------------------------------


class Spinning(Wells):
    """Wells without descent: the energy is conserved while the state goes round."""

    def forward(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
        return turned(self.gradient(y))


def wells(**settings: Any) -> Wells:
    return Wells(torch.ones(1, 1, dtype=torch.float64), **settings)


def test_armijo_steps_achieve_their_part_of_the_first_order_decrease() -> None:
    field = wells(spin=5.0)
    with torch.no_grad():
        solution = solve(
            field, torch.tensor([[2.0, -1.0]], dtype=torch.float64), 0.0, 3.0, method="armijo_euler", dt0=1.0,
            saveat="steps",
        )  # fmt: skip
    for i in range(len(solution.ts) - 1):
        y = solution.ys[i]
        slope = -(field.gradient(y) ** 2).sum()
        dt = solution.ts[i + 1] - solution.ts[i]
        assert solution.energy[i + 1] <= solution.energy[i] + 1e-4 * dt * slope + 1e-14
    assert int(solution.stats["energy_rejected"]) > 0
    assert (solution.ts.diff() < 1).any()  # the time that was really reached


def test_discrete_gradient_dissipates_exactly_what_it_says() -> None:
    """V(y1) - V(y0) = -dt alpha |Vbar|^2; with alpha = 0 the energy is conserved while the state goes round."""

    field = Spinning(torch.ones(1, 1, dtype=torch.float64))
    y0 = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    with torch.no_grad():
        solution = solve(field, y0, 0.0, 50.0, method="discrete_gradient", dt0=0.5, saveat="steps")
    assert len(solution.ts) == 101
    assert (solution.energy - solution.energy[0]).abs().max() < 1e-12
    assert (solution.ys[1:] - solution.ys[:-1]).norm(dim=-1).min() > 0.1


def test_relaxed_steps_conserve_what_the_field_conserves() -> None:
    field = Spinning(torch.ones(1, 1, dtype=torch.float64))
    y0 = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    with torch.no_grad():
        relaxed = solve(field, y0, 0.0, 20.0, method="relaxed_rk4", dt0=0.2, saveat="steps").energy
        plain = solve(field, y0, 0.0, 20.0, method="rk4", dt0=0.2, saveat="steps").energy
    assert (relaxed - relaxed[0]).abs().max() < 1e-12
    assert (plain - plain[0]).abs().max() > 1e-6


@every_dissipative
def test_a_minimum_is_a_place_of_rest_even_if_the_field_spins_there(name: str) -> None:
    """The field jumps at g = 0: the direction is not projected there. The energy must not rise all the same."""

    class Spinner:
        systems = Rows()

        def energy(self, t: Tensor, y: Tensor) -> Tensor:
            return (y * y).sum(-1) / 2

        def __call__(self, t: Tensor, y: Tensor) -> Tensor:
            direction = torch.tensor([1.0, 0.0], dtype=y.dtype)
            square = (y * y).sum(-1, keepdim=True)
            share = (direction * y).sum(-1, keepdim=True) / torch.where(square > 0, square, 1.0)
            return -0.1 * y + direction - share * y

    y0 = torch.tensor([[0.0, 0.0], [1e-9, 1e-9], [0.5, 0.0]], dtype=torch.float64)
    with torch.no_grad():
        solution = solve(Spinner(), y0, 0.0, 3.0, method=name, dt0=1.0, saveat="steps", max_steps=3000, throw=False)
    energy = solution.energy
    assert (energy.diff(dim=0) <= 1e-30).all()
    assert solution.status_of(0) is Status.SUCCESS
    assert torch.equal(solution.y1[0], y0[0])


def test_an_energy_that_is_not_finite_is_reported() -> None:
    class Broken(Wells):
        def energy(self, t: Tensor, y: Tensor, args: Any = None) -> Tensor:
            return super().energy(t, y) + torch.where(y[:, 0] > 0.5, float("nan"), 0.0)

    field = Broken(torch.ones(2, 1))
    with torch.no_grad():
        solution = solve(
            field, torch.tensor([[0.9, 0.1], [0.2, 0.1]]), 0.0, 1.0, method="armijo_euler", dt0=0.1, throw=False
        )
    assert [solution.status_of(i) for i in (0, 1)] == [Status.NOT_DISSIPATIVE, Status.SUCCESS]


def test_solutions_of_fields_without_parameters_do_not_require_gradients() -> None:
    y0 = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    field = wells()
    for parameter in field.parameters():
        parameter.requires_grad_(False)
    for name in DISSIPATIVE:
        assert not solve(field, y0, 0.0, 0.2, method=name, dt0=0.1).y1.requires_grad


def test_works_under_no_grad_and_inference_mode() -> None:
    y0 = torch.tensor([[0.9, 0.1]], dtype=torch.float64)
    field = wells()
    for name in DISSIPATIVE:
        recorded = solve(field, y0, 0.0, 0.2, method=name, dt0=0.1).y1
        with torch.no_grad():
            assert torch.equal(solve(field, y0, 0.0, 0.2, method=name, dt0=0.1).y1, recorded)
        with torch.inference_mode():
            assert torch.equal(solve(field, y0.clone(), 0.0, 0.2, method=name, dt0=0.1).y1, recorded)


def test_settings_of_the_newton_solve_reach_it() -> None:
    """With one iteration the solve cannot converge, and the method has to fall back on shorter steps."""
    hasty = DiscreteGradient(Newton(max_iterations=1, tolerance=1e-14))
    y0 = torch.tensor([[2.0, -1.0]], dtype=torch.float64)
    with torch.no_grad():
        solution = solve(wells(), y0, 0.0, 1.0, method=hasty, dt0=0.5, saveat="steps", throw=False, max_steps=20)
    assert int(solution.stats["energy_rejected"]) > 0
    assert (solution.energy.diff(dim=0) <= 0).all()


class Flat:
    """An energy that is the same everywhere, be it a number or something learned, and a field that is not zero."""

    systems = Rows()

    def __init__(self, height: Tensor) -> None:
        self.height = height

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        return self.height.expand(len(y))

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        return torch.ones_like(y)


@every_dissipative
@pytest.mark.parametrize("learned", [False, True])
def test_flat_energy_is_an_ordinary_energy(name: str, learned: bool) -> None:
    field = Flat(torch.ones((), dtype=torch.float64, requires_grad=learned))
    solution = solve(field, torch.zeros(2, 3, dtype=torch.float64), 0.0, 1.0, method=name, dt0=0.25, saveat="steps")
    torch.testing.assert_close(solution.y1.detach(), torch.ones(2, 3, dtype=torch.float64))
    assert not bool(solution.energy.detach().diff(dim=0).any())


# -- times that steps must end at ---------------------------------------------------------------------------------


class Quartic:
    """`y' = -0.01 g + w J g` with g the gradient of `sum y^4 / 4`: relaxation factors far from 1 at large steps."""

    systems = Rows()

    def __init__(self, spin: float) -> None:
        self.spin = spin
        self.field_calls = self.energy_calls = 0

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        self.field_calls += 1
        g = y**3
        return -0.01 * g + self.spin * turned(g)

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        self.energy_calls += 1
        return (y**4).sum(-1) / 4


def _quartic_states() -> Tensor:
    return torch.randn(12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", DISSIPATIVE)
@pytest.mark.parametrize("part", [1.001, 1.05, 1.3])
@pytest.mark.parametrize(("spin", "dt"), [(1.0, 0.5), (4.0, 0.2), (8.0, 0.05), (4.0, 0.5)])
def test_no_step_passes_the_end_or_a_save_time(name: str, part: float, spin: float, dt: float) -> None:
    field, y0 = Quartic(spin), _quartic_states()
    ends = [part * dt * k for k in range(4)]
    if name == "armijo_euler":  # takes thousands of steps of what is left of a large one
        ends, dt = [0.1 * end for end in ends], 0.1 * dt
    settings = {"method": name, "dt0": dt, "controller": Fixed()}
    alone = solve(field, y0, 0.0, ends[1], **settings)
    assert torch.equal(alone.t1, torch.full_like(alone.t1, ends[1]))
    saved = solve(field, y0, 0.0, ends[-1], saveat=ends, **settings)
    assert torch.equal(saved.t1, torch.full_like(saved.t1, ends[-1]))
    assert_close(saved.ys[1], alone.y1, rtol=0.0, atol=0.0)
    rounding = 1e-14 * saved.energy[0]
    assert bool((saved.energy.diff(dim=0) <= rounding).all())
    # The same through odeint, on its grid of times.
    states = odeint(field, y0, torch.tensor(ends, dtype=torch.float64), method=name, options=_step_size(name, dt))
    energies = torch.stack([field.energy(torch.zeros(()), y) for y in states])
    assert bool((energies.diff(dim=0) <= rounding).all())


def _step_size(name: str, dt: float) -> dict[str, float]:
    return {} if methods()[name].adaptive else {"step_size": dt}


@pytest.mark.parametrize("name", ["relaxed_rk4", "relaxed_dopri5"])
def test_relaxed_states_belong_to_their_times(name: str) -> None:
    """Order at save times that are no multiples of the step, so that every one of them is landed on."""
    y0 = _quartic_states()[:4]
    field = Quartic(0.5)
    saves = [0.13, 0.37, 0.61, 1.0]
    exact = solve(field, y0, 0.0, 1.0, method="dopri8", controller=PID(1e-13, 1e-14), saveat=saves).ys
    errors = []
    for dt in (0.04, 0.02):
        found = solve(field, y0, 0.0, 1.0, method=name, dt0=dt, controller=Fixed(), saveat=saves).ys
        errors.append(float((found - exact).abs().max()))
    order = math.log2(errors[0] / errors[1])
    assert order > methods()[name].order - 0.1, errors


@pytest.mark.parametrize("name", DISSIPATIVE)
def test_a_state_at_an_event_belongs_to_its_time(name: str) -> None:
    field, y0 = Quartic(1.0), _quartic_states()[:4]
    exact = solve(field, y0, 0.0, 9.0, event=lambda t, y: y[:, 0] - 0.2, method="dopri8", controller=PID(1e-11, 1e-12))
    dt = 0.002 if name == "armijo_euler" else 0.02
    found = solve(field, y0, 0.0, 9.0, event=lambda t, y: y[:, 0] - 0.2, method=name, dt0=dt, controller=Fixed())
    fired = exact.status == Status.EVENT
    assert torch.equal(found.status, exact.status)
    assert bool(fired.any())
    assert_close(found.y1[fired, 0], torch.full_like(found.y1[fired, 0], 0.2), rtol=0.0, atol=1e-9)
    assert_close(found.t1[fired], exact.t1[fired], rtol=0.0, atol=0.05 if name == "armijo_euler" else 5e-3)
    assert bool((field.energy(torch.zeros(()), found.y1) <= field.energy(torch.zeros(()), y0)).all())


@pytest.mark.parametrize("name", DISSIPATIVE)
@torch.no_grad()
def test_evaluations_of_the_energy_are_counted(name: str) -> None:
    field, y0 = Quartic(4.0), _quartic_states()[:1]
    solution = solve(field, y0, 0.0, 0.05, method=name, dt0=0.02, controller=Fixed(), stop=EnergyPlateau())
    assert int(solution.stats["nfe"]) == field.field_calls
    assert int(solution.stats["energy_evaluations"]) == field.energy_calls
    plain = solve(field, y0, 0.0, 0.1, method="rk4", dt0=0.02)
    assert int(plain.stats["energy_evaluations"]) == 0
