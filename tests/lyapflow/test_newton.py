"""Newton's direction and its split: against exact solutions, dense against matrix-free, and where the Hessian fails."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor

from lyapflow import (
    Annealed,
    DescentShare,
    DoubleWell,
    Energy,
    LyapunovField,
    MLPEnergy,
    NewtonTangent,
    Quadratic,
    Rosenbrock,
    Rows,
    Segments,
    Single,
    Systems,
    newton_gap,
    newton_split,
)
from lyapflow.inspection import length
from lyapflow.linear import Layout, dense_solve, minres
from lyapflow.testing import assert_newton, assert_tangent, check_field, divided_states, energies
from solvers import solve


def spectrum(eigenvalues: Tensor, seed: int) -> Tensor:
    """A symmetric matrix with these eigenvalues in a random basis."""
    random = torch.Generator().manual_seed(seed)
    d = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(d, d, generator=random, dtype=torch.float64)).Q
    matrix = basis @ torch.diag(eigenvalues.double()) @ basis.T
    return (matrix + matrix.T) / 2


# -- quadratics, where everything is known ------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 1000), st.floats(0, 4), st.floats(-6, 6), st.sampled_from(["dense", "krylov"]))
def test_quadratic(d: int, seed: int, decades: float, scale: float, solver: str) -> None:
    """N = x, alpha = <x, Qx> / |Qx|^2, T = x - alpha Qx; one full step reaches the minimum."""
    Q = 10**scale * spectrum(torch.logspace(-decades, 0, d), seed)
    x = torch.randn(3, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    split = assert_newton(Quadratic(Q), x, solver=solver, tolerance=1e-13)
    g = x @ Q
    assert torch.allclose(split.gradient, g, rtol=1e-10)
    assert (length(Rows().bind(x), split.direction - x) <= 1e-7 * length(Rows().bind(x), x)).all()
    wanted = (x * g).sum(-1) / g.square().sum(-1)
    assert torch.allclose(split.alpha, wanted, rtol=1e-7)
    assert torch.allclose(split.tangent, x - wanted[:, None] * g, atol=1e-7 * float(x.abs().max()))
    assert split.ok.all()
    assert split.report() == ""
    after = Quadratic(Q)(x - split.direction)
    assert (after <= 1e-12 * Quadratic(Q)(x)).all()


def test_alpha_exceeds_one_where_the_energy_is_shallow() -> None:
    """Newton needs an alpha above 1 in general: a sigmoid cannot give it."""
    split = newton_split(Quadratic([0.1, 0.2]), torch.ones(1, 2))
    assert float(split.alpha) > 1


@pytest.mark.parametrize("condition", [1e2, 1e6])
def test_newtons_flow_does_not_see_the_condition(condition: float) -> None:
    """dh/dt = -N: everything decays like e^-t, whatever the condition of the Hessian."""
    bowl = Quadratic(spectrum(torch.logspace(0, -float(torch.tensor(condition).log10()), 4), 0))
    field = LyapunovField(bowl, NewtonTangent(bowl), alpha=DescentShare())
    h = torch.randn(5, 4, dtype=torch.float64)
    end = solve(field, h, 0.0, 3.0, method="rk4", dt0=0.1).y1
    assert torch.allclose(end, h * torch.exp(torch.tensor(-3.0, dtype=torch.float64)), rtol=1e-4)


# -- any energy ------------------------------------------------------------------------------------------------------


@given(st.data())
def test_decomposition(data: st.DataObject) -> None:
    """N = alpha g + T with <T, g> = 0, for energies, types, scales and divisions of all kinds; or it is reported."""
    division, h = data.draw(divided_states(scales=(1e-3, 1e3)))
    energy = data.draw(energies(h.shape[1], h.dtype, division))
    assume(bool(torch.isfinite(energy(h)).all()))
    solver = data.draw(st.sampled_from(["dense", "krylov"]))
    split = newton_split(energy, h, solver=solver)
    assume(bool(torch.isfinite(split.gradient).all() & torch.isfinite(split.direction).all()))
    bound = division.bind(h)
    again = bound.spread(split.alpha) * split.gradient + split.tangent
    size = split.alpha.abs() * length(bound, split.gradient) + length(bound, split.tangent)
    eps = torch.finfo(h.dtype).eps
    assert (length(bound, again - split.direction) <= 8 * eps * size).all()
    left = length(bound, split.tangent) > 1e-3 * length(bound, split.direction)
    assert_tangent(torch.where(bound.spread(left), split.tangent, 0.0), split.gradient, bound)
    told = {s for s in range(bound.count) if f"system {s}:" in split.report()}
    assert told == set((~split.ok).nonzero().flatten().tolist())


@given(st.data())
def test_matrix_free_agrees_with_the_matrix(data: st.DataObject) -> None:
    division, h = data.draw(divided_states(scales=(1e-2, 1e2), dtypes=[torch.float64]))
    energy = data.draw(energies(h.shape[1], h.dtype, division))
    dense, krylov = (newton_split(energy, h, solver=s, tolerance=1e-12) for s in ("dense", "krylov"))  # type: ignore[arg-type]
    both = dense.ok & krylov.converged & (dense.largest <= 1e4 * dense.smallest)
    bound = division.bind(h)
    off = length(bound, dense.direction - krylov.direction)
    assert (off <= 1e-6 * length(bound, dense.direction))[both].all()
    # What matrix-free iteration sees of the eigenvalues lies among them.
    # (Where a softmax saturates, the entries of the Hessian are differences of numbers around 1.)
    room = 1e-9 * dense.largest.abs().maximum(dense.smallest.abs()) + 1e-13 * energy.scale
    moved = bound.largest(dense.gradient) > 0
    assert (krylov.smallest >= dense.smallest - room)[moved].all()
    assert (krylov.largest <= dense.largest + room)[moved].all()


@given(st.data())
def test_systems_do_not_act_on_each_other(data: st.DataObject) -> None:
    division, h = data.draw(divided_states(scales=(1e-1, 1e1), dtypes=[torch.float64]))
    energy = data.draw(energies(h.shape[1], h.dtype, division, scales=(1e-2, 1e2)))
    solver = data.draw(st.sampled_from(["dense", "krylov"]))
    bound = division.bind(h)
    split = newton_split(energy, h, solver=solver)
    for s in range(bound.count):
        mine = bound.spread(torch.arange(bound.count) == s).expand_as(h)[:, 0]
        if not mine.any():
            continue
        alone = Segments(torch.zeros(int(mine.sum()), dtype=torch.int64), 1)
        solo = newton_split(energy.bind(alone), h[mine], solver=solver)
        if not (bool(split.ok[s]) and float(split.largest[s]) < 1e4 * float(split.smallest[s])):
            continue
        assert torch.allclose(solo.direction, split.direction[mine], rtol=1e-6, atol=1e-9 * float(h.abs().max() + 1))
        assert torch.allclose(solo.alpha[0], split.alpha[s], rtol=1e-6)


# -- Hessians that fail -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["dense", "krylov"])
def test_singular_and_indefinite_hessians_are_reported_per_system(solver: str) -> None:
    """Rows: fine; singular in y with a gradient there; indefinite; at rest."""

    class Patchwork(Energy):
        def forward(self, h: Tensor) -> Tensor:
            x, y = h.unbind(-1)
            fine = x**2 + 2 * y**2
            ramp = x**2 + y  # no curvature along y, but a slope
            saddle = x**2 - y**2
            return torch.stack([fine[0], ramp[1], saddle[2], fine[3]])

    h = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
    split = newton_split(Patchwork(), h, solver=solver)  # type: ignore[arg-type]
    assert split.singular.tolist() == [False, True, False, False]
    assert split.indefinite.tolist() == [False, False, True, False]
    assert split.ok.tolist() == [True, False, False, True]
    assert torch.allclose(split.direction[0], h[0])
    assert float(split.residual[1]) > 0.1
    assert torch.allclose(split.direction[2], h[2])  # the saddle itself is where Newton leads
    assert (split.direction[3] == 0).all()
    lines = split.report().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("system 1: the Hessian is singular (eigenvalues ")
    assert lines[1].startswith("system 2: the Hessian is indefinite (eigenvalues -2 to 2")
    damped = newton_split(Patchwork(), h, damping=3.0, solver=solver)  # type: ignore[arg-type]
    assert damped.ok.all()
    assert (damped.alpha[:3] > 0).all()


def test_least_squares_where_the_gradient_is_out_of_reach() -> None:
    """V = x^2 + y: the best that can be done is to solve for x."""
    split = newton_split(lambda h: h[:, 0] ** 2 + h[:, 1], torch.tensor([[3.0, 5.0]]), solver="dense")
    assert torch.allclose(split.direction, torch.tensor([[3.0, 0.0]]))


def test_the_energy_of_a_mean_of_squares_has_a_singular_hessian_at_its_zero() -> None:
    """V = v^2 has rank one there, however many entries the state has."""
    energy = MLPEnergy(4, 8).double()
    h = torch.randn(1, 4, dtype=torch.float64)
    for _ in range(200):  # Newton's method on v alone
        state = h.requires_grad_()
        v = energy.network(state).squeeze()
        (slope,) = torch.autograd.grad(v, state)
        h = (h - v * slope / slope.square().sum()).detach()
    assert float(energy(h).detach()) < 1e-25
    split = newton_split(energy, h + 1e-9, solver="dense")
    assert bool(split.smallest < 1e-6 * split.largest)
    assert not bool(newton_split(energy, h, damping=1e-2, solver="dense").singular)


def test_nan_in_one_system_leaves_the_others_alone() -> None:
    h = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [3.0, 1.0]], dtype=torch.float64)
    for solver in ("dense", "krylov"):
        split = newton_split(Quadratic(torch.tensor([2.0, 3.0]).double()), h, solver=solver)  # type: ignore[arg-type]
        assert split.ok.tolist() == [True, False, True]
        assert torch.allclose(split.direction[[0, 2]], h[[0, 2]])


# -- large systems ----------------------------------------------------------------------------------------------------


class Chain(Energy):
    """A long chain of springs with an anharmonic part: a large state with a sparse Hessian."""

    def forward(self, h: Tensor) -> Tensor:
        stretch = h[:, 1:] - h[:, :-1]
        return (stretch.square() / 2 + 0.1 * stretch**4 + h[:, 1:].square() / 50).sum(-1) + h[:, 0].square()


def test_large_systems_never_form_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a dense Hessian of a large state")

    monkeypatch.setattr("lyapflow.newton.dense_solve", refuse)
    h = torch.randn(2, 3000, dtype=torch.float64)
    split = newton_split(Chain(), h)
    assert not split.exact
    assert split.ok.all()
    assert (split.residual < 1e-10).all()
    assert (split.orthogonality < 1e-14).all()
    assert (Chain()(h - split.direction) < 0.25 * Chain()(h)).all()


def test_small_systems_do_by_default() -> None:
    assert newton_split(Chain(), torch.randn(2, 10)).exact


def test_iteration_limit_is_reported() -> None:
    split = newton_split(Chain(), torch.randn(1, 300, dtype=torch.float64), max_iterations=3)
    assert not split.converged.any()
    assert "too ill-conditioned" in split.report()


@given(st.integers(1, 12), st.integers(0, 500), st.booleans())
def test_minres_against_the_matrix(d: int, seed: int, definite: bool) -> None:
    eigenvalues = torch.logspace(-2, 0, d, dtype=torch.float64)
    if not definite:
        eigenvalues = eigenvalues * (-1.0) ** torch.arange(d)
    A = spectrum(eigenvalues, seed)
    b = torch.randn(4, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x, seen = minres(lambda v: v @ A, b, Rows().bind(b), 1e-12, 10 * d)
    assert torch.allclose(x, torch.linalg.solve(A, b.T).T, rtol=1e-7, atol=1e-8)
    assert (seen.smallest >= eigenvalues.min() - 1e-9).all()
    assert (seen.largest <= eigenvalues.max() + 1e-9).all()
    if not definite and d > 1:
        assert seen.indefinite.all()


@given(st.integers(1, 8).flatmap(lambda rows: st.lists(st.integers(0, 3), min_size=rows, max_size=rows)))
def test_layout_goes_there_and_back(index: list[int]) -> None:
    x = torch.randn(len(index), 2)
    layout = Layout(Segments(torch.tensor(index), 4).bind(x), x)
    rows = layout.to_rows(x)
    assert torch.equal(layout.from_rows(rows), x)
    for s in range(4):
        assert torch.equal(rows[s][: int(layout.sizes[s])], x[torch.tensor(index) == s].reshape(-1))
    assert torch.equal(sum((layout.probe(p, x) for p in range(layout.width)), torch.zeros_like(x)), torch.ones_like(x))


def test_ragged_dense_solve_is_not_led_astray_by_missing_places() -> None:
    index = torch.tensor([0, 0, 0, 1])
    division = Segments(index, 3)
    h = torch.randn(4, 2, dtype=torch.float64)
    direction, curvature = dense_solve(lambda v: 1e-3 * v, h, division.bind(h))
    assert torch.allclose(direction, 1e3 * h)
    assert torch.allclose(curvature.smallest[:2], torch.tensor(1e-3, dtype=torch.float64))
    assert torch.allclose(curvature.largest[:2], torch.tensor(1e-3, dtype=torch.float64))
    assert not curvature.singular.any()


# -- derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["dense", "krylov"])
def test_the_split_is_differentiable(solver: str) -> None:
    h = torch.tensor([[0.3, 0.9], [1.4, -0.7]], dtype=torch.float64, requires_grad=True)
    stiffness = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)

    def parts(h: Tensor, stiffness: Tensor) -> tuple[Tensor, ...]:
        def energy(x: Tensor) -> Tensor:
            return (stiffness * x[:, 0] ** 2 + x.square().sum(-1) ** 2 + x[:, 0] * x[:, 1] ** 3).cosh().log()

        split = newton_split(energy, h, solver=solver, damping=0.5, tolerance=1e-13)  # type: ignore[arg-type]
        return split.direction, split.alpha, split.tangent

    assert torch.autograd.gradcheck(parts, (h, stiffness))


def test_derivatives_of_large_systems() -> None:
    """With restarts, and no more Krylov vectors than a small system has entries."""
    h = torch.randn(1, 150, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(1, 150, dtype=torch.float64)
    slopes = []
    for solver in ("dense", "krylov"):
        split = newton_split(Chain(), h, solver=solver, tolerance=1e-13)  # type: ignore[arg-type]
        slopes.append(torch.autograd.grad((split.direction * weights).sum(), h)[0])
    step = 1e-6 * torch.randn(1, 150, dtype=torch.float64)
    with torch.no_grad():
        ahead, behind = (newton_split(Chain(), h + sign * step, solver="dense").direction for sign in (1, -1))
    difference = float(((ahead - behind) * weights).sum()) / 2
    for slope in slopes:
        assert float((slope * step).sum()) == pytest.approx(difference, rel=1e-4)


def test_nothing_is_recorded_if_nothing_wants_a_gradient() -> None:
    split = newton_split(Quadratic([1.0, 2.0]), torch.ones(1, 2))
    assert not split.direction.requires_grad
    energy = MLPEnergy(2)
    with torch.no_grad():
        assert not newton_split(energy, torch.ones(1, 2)).direction.requires_grad
    with torch.inference_mode():
        assert torch.isfinite(newton_split(energy, torch.ones(1, 2)).direction).all()


def test_a_newton_field_keeps_the_contract() -> None:
    energy = Quadratic([1.0, 5.0])

    class Wavy(Energy):
        def forward(self, h: Tensor) -> Tensor:
            return energy(h) + 0.3 * torch.cos(h).sum(-1)

    wavy = Wavy()
    field = LyapunovField(wavy, NewtonTangent(wavy, damping=0.1), alpha=DescentShare())
    check_field(field, torch.tensor([[1.0, 2.0], [-0.5, 0.3]]), max_examples=5)


# -- towards Newton -----------------------------------------------------------------------------------------------


def test_newton_gap() -> None:
    bowl, h = Quadratic([1.0, 9.0]), torch.randn(6, 2)
    split = newton_split(bowl, h)
    newton = LyapunovField(bowl, NewtonTangent(bowl), alpha=DescentShare())
    assert (newton_gap(newton, h, split, Rows()) < 1e-10).all()
    gradient = newton_gap(LyapunovField(bowl, alpha=1 / 9), h, split, Rows())
    assert (gradient > 0.01).all()


def test_energies_that_take_the_time() -> None:
    energy = Annealed(Quadratic([1.0, 4.0]), rate=1.0)
    split = newton_split(energy, torch.ones(1, 2), t=1.0)
    assert torch.allclose(split.direction, torch.ones(1, 2))
    assert torch.allclose(split.gradient, torch.exp(torch.tensor(-1.0)) * torch.tensor([[1.0, 4.0]]))
    field = LyapunovField(energy, NewtonTangent(energy), alpha=DescentShare())
    assert torch.allclose(field(1.0, torch.ones(1, 2)), -torch.ones(1, 2))


@pytest.mark.parametrize("division", [Rows(), Single(), Segments(torch.tensor([1, 0, 1]), 2)])
def test_every_division(division: Systems) -> None:
    split = assert_newton(Rosenbrock(), torch.tensor([[1.2, 1.0], [0.9, 1.1], [2.0, 3.0]]).double(), division)
    assert split.alpha.shape == (division.bind(torch.zeros(3, 2)).count,)


def test_wrong_input() -> None:
    h = torch.ones(2, 2)
    with pytest.raises(ValueError, match='solver must be "auto", "dense" or "krylov", got \'lu\''):
        newton_split(DoubleWell(), h, solver="lu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="damping must not be negative, got -1"):
        newton_split(DoubleWell(), h, damping=-1.0)
    with pytest.raises(TypeError, match=r"float32 or float64, got torch\.int64"):
        newton_split(DoubleWell(), h.long())
    with pytest.raises(ValueError, match="one value for each of the 2 systems"):
        newton_split(lambda x: x.sum(), h)
    with pytest.raises(TypeError, match="energy must be an Energy, got function"):
        NewtonTangent(lambda x: x)  # type: ignore[arg-type]
