"""The Lyapunov field: what it promises, over random energies, tangents, coefficients, types, scales and divisions."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import assume, given
from torch import Tensor, nn

from lyapflow import (
    Annealed,
    AntisymmetricTangent,
    Coefficient,
    ConvexEnergy,
    DescentShare,
    DoubleWell,
    Energy,
    Flow,
    LyapunovField,
    MLPCoefficient,
    MLPEnergy,
    MLPTangent,
    Quadratic,
    Rosenbrock,
    Rows,
    Segments,
    Single,
    Systems,
    Tangent,
    project,
)
from lyapflow.inspection import inspect_field, length
from lyapflow.testing import (
    assert_dissipates,
    assert_tangent,
    check_field,
    divided_states,
    energies,
    fields,
    states_like,
)
from lyapflow.testing.contract import _CHECKS, _Others
from solvers import solve

Case = tuple[LyapunovField, Tensor]


@st.composite
def cases(draw: st.DrawFn, scales: tuple[float, float] = (1e-6, 1e6)) -> Case:
    """A field and a state; where the energy overflows there is nothing to say."""
    division, h = draw(divided_states(scales=scales))
    field = draw(fields(h.shape[1], h.dtype, division, scales))
    seen = inspect_field(field, 0.0, h, division.bind(h))
    assume(bool(torch.isfinite(seen.energy).all() & torch.isfinite(seen.rate).all()))
    return field, h


# -- the promises ---------------------------------------------------------------------------------------------------


@given(cases())
def test_dissipation(case: Case) -> None:
    """dV/dt <= 0 in every system, and equal to -alpha |g|^2, to rounding."""
    field, h = case
    assert_dissipates(field, h)


@given(cases())
def test_dissipation_measured_along_the_field(case: Case) -> None:
    """Not by our own gradient: by the energy itself, a little further along the field, in double precision."""
    field, h = case
    if h.dtype != torch.float64:
        return
    parts = field.parts(0.0, h)
    bound = field.systems.bind(h)
    assume(bool((length(bound, parts.velocity) > 0).all()))
    step = 1e-7 * length(bound, h).clamp(min=1e-6) / length(bound, parts.velocity)
    ahead, behind = (field.energy(0.0, h + bound.spread(sign * step) * parts.velocity) for sign in (1, -1))
    slope = (ahead - behind) / (2 * step)
    rounding = 1e-15 * (parts.energy.abs() + bound.total((parts.gradient * h).abs())) / step
    curvature = 1e-5 * (
        length(bound, parts.gradient) * length(bound, parts.velocity) + parts.energy.abs() / step * 1e-7
    )
    slopes = bound.largest(parts.gradient) > 0  # where it is zero, what is left of the difference is of higher order
    assert (slope - parts.rate).abs().le(rounding * 8 + curvature)[slopes].all()


@given(cases())
def test_orthogonality(case: Case) -> None:
    field, h = case
    parts = field.parts(0.0, h)
    bound = field.systems.bind(h)
    left = length(bound, parts.tangent) > 1e-3 * length(bound, parts.direction)
    assert_tangent(torch.where(bound.spread(left), parts.tangent, 0.0).detach(), parts.gradient, bound)


@given(divided_states(), st.data())
def test_motion_in_flat_regions(case: tuple[Systems, Tensor], data: st.DataObject) -> None:
    """Where g = 0 the velocity is beta M, to the bit, and the energy does not care."""
    division, h = case

    class Flat(Energy):
        def forward(self, h: Tensor) -> Tensor:
            return self.systems.total(0 * h) + 3.0

    beta = data.draw(st.sampled_from([1.0, -2.0, 0.5]))
    tangent = MLPTangent(h.shape[1], 8).to(h.dtype)
    field = LyapunovField(Flat(), tangent, alpha=7.0, beta=beta, systems=division)
    parts = field.parts(0.0, h)
    assert torch.equal(parts.velocity, beta * tangent(h))
    assert torch.equal(parts.tangent, parts.direction)
    assert (parts.rate == 0).all()


def test_flat_in_one_system_only() -> None:
    """Systems at the bottom move by M, the others by their own projection."""
    h = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    tangent = MLPTangent(2, 8)
    field = LyapunovField(Quadratic([1.0, 1.0]), tangent)
    velocity, M = field(0.0, h), tangent(h)
    assert torch.equal(velocity[0], M[0])
    assert torch.equal(velocity[1:], -h[1:] + project(M, h)[1:])


@given(cases())
def test_parts_are_what_the_field_is_made_of(case: Case) -> None:
    field, h = case
    parts = field.parts(0.0, h)
    bound = field.systems.bind(h)
    assert torch.equal(parts.velocity, field(0.0, h))
    assert torch.equal(parts.energy, field.energy(0.0, h))
    assert (parts.alpha >= 0).all()
    again = bound.spread(parts.beta) * parts.tangent - bound.spread(parts.alpha) * parts.gradient
    size = parts.alpha * length(bound, parts.gradient) + parts.beta.abs() * length(bound, parts.tangent)
    off = length(bound, (again - parts.velocity).detach())
    assert (off <= 4 * torch.finfo(h.dtype).eps * size).all()
    assert torch.allclose(parts.dissipation, parts.alpha * bound.inner(parts.gradient, parts.gradient))


@pytest.mark.parametrize("promise", ["shapes and types", "function of the state", "no_grad", "independence"])
@given(case=cases(scales=(1e-2, 1e2)), data=st.data())
def test_promises_over_all_fields(promise: str, case: Case, data: st.DataObject) -> None:
    field, h = case
    _CHECKS[promise](field, h, _Others(data, states_like(h)))


@pytest.mark.parametrize("width", [1, 3])
def test_the_whole_contract(width: int) -> None:
    field = LyapunovField(
        MLPEnergy(width, 8), MLPTangent(width, 8), MLPCoefficient(width, 4), MLPCoefficient(width, 4, within="real")
    )
    check_field(field, torch.randn(3, width), max_examples=8)


def test_the_whole_contract_on_graphs() -> None:
    division = Segments(torch.tensor([0, 0, 2, 1, 0]), 4)
    field = LyapunovField(MLPEnergy(2, 8), MLPTangent(2, 8), systems=division)
    check_field(field, torch.randn(5, 2), max_examples=8)


def test_the_whole_contract_for_a_single_system() -> None:
    field = LyapunovField(ConvexEnergy(3, 8), AntisymmetricTangent(3), systems=Single())
    check_field(field, torch.randn(3), max_examples=8)


# -- what the printed equation would do ---------------------------------------------------------------------------


@given(st.floats(0.1, 10.0), st.integers(0, 100))
def test_the_printed_equation_five_is_orthogonal_for_unit_gradients_only(size: float, seed: int) -> None:
    """`M - <M, g/|g|> g` leaves <T, g> = <M, g/|g|> |g| (1 - |g|)."""
    assume(abs(size - 1) > 1e-3)
    random = torch.Generator().manual_seed(seed)
    g = torch.nn.functional.normalize(torch.randn(1, 4, generator=random, dtype=torch.float64)) * size
    M = torch.randn(1, 4, generator=random, dtype=torch.float64)
    unit = g / size
    printed = M - (M * unit).sum() * g
    assert torch.allclose((printed * g).sum(), (M * unit).sum() * size * (1 - size))
    assert_tangent(project(M, g), g)
    with pytest.raises(AssertionError):
        assert_tangent(printed, g)


# -- coefficients -------------------------------------------------------------------------------------------------


class Always(Coefficient):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    def forward(self, h: Tensor) -> Tensor:
        return self.value.expand(self.systems.bind(h).count)


def test_negative_alpha_is_refused() -> None:
    for alpha in (-0.1, torch.tensor(-0.1), torch.tensor([1.0, -1.0])):
        with pytest.raises(ValueError, match="alpha must not be negative"):
            LyapunovField(Quadratic([1.0]), alpha=alpha)


def test_alpha_of_a_module_is_kept_non_negative() -> None:
    h = torch.randn(4, 2)
    field = LyapunovField(Quadratic([1.0, 1.0]), alpha=Always(-3.0))
    assert (field.parts(0.0, h).alpha == 0).all()
    assert (field(0.0, h) == 0).all()
    learned = LyapunovField(Quadratic([1.0, 1.0]), alpha=nn.Parameter(torch.tensor(0.5)))
    assert torch.equal(learned(0.0, h), -0.5 * h)
    with torch.no_grad():
        learned.alpha.fill_(-1.0)
    assert (learned(0.0, h) == 0).all()


def test_coefficients_per_system() -> None:
    h = torch.ones(3, 2)
    alpha = torch.tensor([0.0, 1.0, 2.0])
    field = LyapunovField(Quadratic([1.0, 1.0]), alpha=alpha)
    assert torch.equal(field(0.0, h), -alpha[:, None] * h)
    assert "alpha" in field.state_dict()
    ragged = LyapunovField(
        Quadratic([1.0, 1.0]), torch.ones_like, alpha=torch.tensor([1.0, 2.0]), beta=torch.tensor([0.0, 1.0]),
        systems=Segments(torch.tensor([0, 1, 1]), 2),
    )  # fmt: skip
    state = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, -1.0]])
    parts = ragged.parts(0.0, state)
    assert torch.equal(parts.velocity[0], -state[0])
    assert torch.allclose(parts.velocity[1:], -2 * state[1:] + parts.tangent[1:])


@pytest.mark.parametrize("wrong", ["a", None, [1.0], True])
def test_wrong_coefficients(wrong: Any) -> None:
    for name in ("alpha", "beta"):
        with pytest.raises(TypeError, match=f"{name} must be a number"):
            LyapunovField(Quadratic([1.0]), **{name: wrong})


def test_coefficients_of_wrong_shape_or_value() -> None:
    with pytest.raises(ValueError, match="alpha must be finite"):
        LyapunovField(Quadratic([1.0]), alpha=math.inf)
    with pytest.raises(ValueError, match="one value for each of the 3 systems, got shape"):
        LyapunovField(Quadratic([1.0]), alpha=lambda h: h)(0.0, torch.ones(3, 1))
    with pytest.raises(ValueError, match="beta must be a real scalar or"):
        LyapunovField(Quadratic([1.0]), beta=torch.ones(2, 2))


def test_descent_share_keeps_what_descends() -> None:
    """The velocity is M where M descends, and M without its part along g where it climbs."""
    bowl = Quadratic([1.0, 1.0])
    h = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    M = torch.tensor([[-2.0, 1.0], [2.0, 1.0]])
    velocity = LyapunovField(bowl, lambda _: M, alpha=DescentShare())(0.0, h)
    assert torch.equal(velocity, torch.tensor([[-2.0, 1.0], [0.0, 1.0]]))


@given(cases(scales=(1e-3, 1e3)), st.floats(0.01, 10.0))
def test_descent_share_decays_at_its_rate(case: Case, rate: float) -> None:
    """dV/dt <= -rate V for energies that are not negative, except where the gradient is zero."""
    made, h = case
    energy = made.energy_module
    assume(bool((made.energy(0.0, h) >= 0).all()))
    field = LyapunovField(energy, MLPTangent(h.shape[1], 8).to(h.dtype), DescentShare(rate), systems=made.systems)
    parts = field.parts(0.0, h)
    seen = inspect_field(field, 0.0, h, made.systems.bind(h))
    bound = made.systems.bind(h)
    slopes = bound.largest(parts.gradient) > 0
    size = seen.allowance + 32 * torch.finfo(h.dtype).eps * rate * parts.energy
    assert (parts.rate <= -rate * parts.energy + size)[slopes].all()


# -- variants -----------------------------------------------------------------------------------------------------


def test_gradient_flow_does_not_evaluate_the_tangent() -> None:
    def never(h: Tensor) -> Tensor:
        raise AssertionError

    h = torch.randn(3, 2)
    assert torch.equal(LyapunovField(Quadratic([1.0, 1.0]), never, beta=0)(0.0, h), -h)
    assert torch.equal(LyapunovField(Quadratic([1.0, 1.0]))(0.0, h), -h)


def test_without_projection() -> None:
    h, M = torch.randn(3, 2), torch.randn(3, 2)
    field = LyapunovField(Quadratic([1.0, 1.0]), lambda _: M, projection="none")
    assert torch.allclose(field(0.0, h), -h + M)
    with pytest.raises(AssertionError):
        assert_dissipates(LyapunovField(Quadratic([1.0, 1.0]), lambda x: 3 * x, projection="none"), h)


def test_projection_per_row_implies_projection_per_system() -> None:
    division = Segments(torch.tensor([0, 0, 1]), 2)
    h = torch.randn(3, 4)
    parts = LyapunovField(MLPEnergy(4), MLPTangent(4), systems=division, projection="row").parts(0.0, h)
    assert_tangent(parts.tangent.detach(), parts.gradient, Rows())
    assert_tangent(parts.tangent.detach(), parts.gradient, division)
    whole = LyapunovField(MLPEnergy(4), MLPTangent(4), systems=division).parts(0.0, h)
    with pytest.raises(AssertionError):
        assert_tangent(whole.tangent.detach(), whole.gradient, Rows())


class WithFeatures(Energy):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, h: Tensor) -> Tensor:
        return self.value_and_features(h)[0]

    def value_and_features(self, h: Tensor, **taken: Any) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.layer(h))
        return features.square().sum(-1), features


def test_a_plain_direction_in_place_of_the_gradient() -> None:
    h, M = torch.randn(3, 2), torch.randn(3, 2)
    energy = WithFeatures()
    features = energy.value_and_features(h)[1]
    field = LyapunovField(energy, lambda _: M, alpha=0.5, descent="features")
    assert torch.allclose(field(0.0, h), -0.5 * features + project(M, features))
    parts = field.parts(0.0, h)
    assert torch.equal(parts.descent, features)
    assert torch.allclose(parts.rate, (parts.gradient * parts.velocity).sum(-1))
    other = LyapunovField(energy, lambda _: M, descent=torch.sin)
    assert torch.allclose(other(0.0, h), -h.sin() + project(M, h.sin()))


def test_coefficients_get_features() -> None:
    class OfFeatures(Coefficient):
        takes = ("features",)

        def forward(self, h: Tensor, features: Tensor) -> Tensor:  # type: ignore[override]
            return features.square().sum(-1)

    h, energy = torch.randn(3, 2), WithFeatures()
    parts = LyapunovField(energy, torch.sin, alpha=OfFeatures(), beta=OfFeatures()).parts(0.0, h)
    assert torch.allclose(parts.alpha, energy(h))
    assert torch.allclose(parts.beta, h.sin().square().sum(-1))


def test_a_component_that_takes_what_is_not_known_yet() -> None:
    class Early(Tangent):
        takes = ("direction",)

        def forward(self, h: Tensor, direction: Tensor) -> Tensor:  # type: ignore[override]
            return direction

    with pytest.raises(TypeError, match="Early takes 'direction', but only"):
        LyapunovField(Quadratic([1.0]), Early())(0.0, torch.ones(1, 1))


# -- energies that depend on time -----------------------------------------------------------------------------------


@pytest.mark.parametrize("division", [Rows(), Single(), Segments(torch.tensor([0, 1, 1]), 2)])
def test_annealed_energies_dissipate(division: Systems) -> None:
    energy = Annealed(Quadratic([1.0, 3.0]).double(), rate=0.7, floor=0.1)
    field = LyapunovField(energy, MLPTangent(2, timed=True).double(), systems=division)
    h = torch.randn(3, 2, dtype=torch.float64)
    for t in (0.0, 2.0):
        assert_dissipates_in_time(field, h, t)
    solution = solve(field, h, 0.0, 2.0, method="rk4", dt0=0.05, saveat="steps")
    assert (solution.energy.diff(dim=0) < 0).all()


def assert_dissipates_in_time(field: LyapunovField, h: Tensor, t: float) -> None:
    """dV/dt with the energy's own change in time, against a difference."""
    step = 1e-6
    velocity = field(t, h)
    slope = (field.energy(t + step, h + step * velocity) - field.energy(t - step, h - step * velocity)) / (2 * step)
    rate = field.parts(t, h).rate
    assert torch.allclose(rate, slope, rtol=1e-5)
    assert (rate < 0).all()


# -- contexts -------------------------------------------------------------------------------------------------------


def test_under_inference_mode() -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), MLPCoefficient(2), systems=Segments(torch.tensor([0, 0, 1]), 2))
    h = torch.randn(3, 2)
    wanted = field(0.0, h)
    with torch.inference_mode():
        assert torch.allclose(field(0.0, h), wanted, atol=1e-7)
        assert torch.allclose(field(0.0, h.clone()), wanted, atol=1e-7)
        assert torch.isfinite(field.parts(0.0, h.clone()).rate).all()


def test_nothing_is_recorded_if_nothing_wants_a_gradient() -> None:
    field = LyapunovField(DoubleWell(), AntisymmetricTangent(2))
    for parameter in field.parameters():
        parameter.requires_grad_(False)
    assert not field(0.0, torch.randn(3, 2)).requires_grad
    assert not field.parts(0.0, torch.randn(3, 2)).rate.requires_grad
    hidden = torch.tensor(2.0, requires_grad=True)  # not a parameter, but it wants one all the same
    assert LyapunovField(lambda h: hidden * h.square().sum(-1))(0.0, torch.ones(1, 1)).requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_gradients_do_not_depend_on_the_mode(training: bool) -> None:
    """A validation loop that differentiates, and a training loop that does not, are both ordinary."""
    field = LyapunovField(MLPEnergy(2), MLPTangent(2)).train(training)
    h = torch.randn(3, 2)
    slopes = torch.autograd.grad(field(0.0, h).square().sum(), list(field.parameters()), allow_unused=True)
    energy = [p for name, p in field.named_parameters() if name.startswith("energy")]
    by_parameter = dict(zip(field.parameters(), slopes, strict=True))
    assert all(by_parameter[p] is not None and by_parameter[p].abs().max() > 0 for p in energy)
    with torch.no_grad():
        assert not field(0.0, h).requires_grad


def test_autocast_leaves_the_energy_in_single_precision() -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), alpha=1.0, beta=1.0)
    h = torch.randn(16, 2)
    wanted = field.parts(0.0, h)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        parts = field.parts(0.0, h)
        assert field.energy(0.0, h).dtype == torch.float32
    assert torch.equal(parts.gradient, wanted.gradient)
    assert parts.velocity.dtype == torch.float32
    assert_tangent(parts.tangent.detach(), parts.gradient)


def test_half_precision_states() -> None:
    h = torch.randn(8, 2)
    field = LyapunovField(MLPEnergy(2), lambda x: x.roll(1, -1), alpha=0.5)
    velocity = field(0.0, h.bfloat16())
    assert velocity.dtype == torch.bfloat16
    assert torch.allclose(velocity.float(), field(0.0, h.bfloat16().float()), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("rows", [0, 1])
def test_small_batches(rows: int) -> None:
    field = LyapunovField(MLPEnergy(3), MLPTangent(3), MLPCoefficient(3))
    assert field(0.0, torch.randn(rows, 3)).shape == (rows, 3)
    assert field.parts(0.0, torch.randn(rows, 3)).rate.shape == (rows,)
    empty = LyapunovField(MLPEnergy(3), MLPTangent(3), systems=Segments(torch.zeros(rows, dtype=torch.int64), 3))
    assert empty.parts(0.0, torch.randn(rows, 3)).energy.shape == (3,)


def test_copies_and_files() -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), MLPCoefficient(2), systems=Segments(torch.tensor([0, 0, 1]), 2))
    h = torch.randn(3, 2)
    for twin in (copy.deepcopy(field), pickle.loads(pickle.dumps(field))):
        assert torch.equal(twin(0.0, h), field(0.0, h))
    other = LyapunovField(MLPEnergy(2), MLPTangent(2), MLPCoefficient(2), systems=field.systems)
    other.load_state_dict(field.state_dict())
    assert torch.equal(other(0.0, h), field(0.0, h))


def test_the_same_energy_over_other_systems_shares_its_parameters() -> None:
    energy = MLPEnergy(2)
    field = LyapunovField(energy, MLPTangent(2), systems=Single())
    assert field.energy_module is not energy
    assert isinstance(energy.systems, Rows)
    assert set(energy.parameters()) < set(field.parameters())
    field.double()
    assert next(energy.parameters()).dtype == torch.float64
    before = next(iter(energy.parameters())).clone()
    torch.optim.SGD(field.parameters(), 1.0).zero_grad()
    field.energy(0.0, torch.ones(1, 2, dtype=torch.float64)).sum().backward()
    torch.optim.SGD(field.parameters(), 1.0).step()
    assert not torch.equal(before, next(iter(energy.parameters())))


def test_on_every_device(device: torch.device) -> None:
    field = LyapunovField(MLPEnergy(2), MLPTangent(2), MLPCoefficient(2)).to(device)
    h = torch.randn(4, 2, device=device)
    assert field(0.0, h).device.type == device.type
    assert_dissipates(field, h)
    assert Flow(field, steps=3, step_size=0.1)(h).device.type == device.type


# -- wrong input ------------------------------------------------------------------------------------------------------


def test_wrong_components() -> None:
    with pytest.raises(TypeError, match="energy must be Energy or a callable of the state, got int"):
        LyapunovField(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tangent must be Tangent or a callable"):
        LyapunovField(DoubleWell(), "east")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="systems must be Single"):
        LyapunovField(DoubleWell(), systems="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='projection must be "system", "row" or "none", got \'graph\''):
        LyapunovField(DoubleWell(), projection="graph")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="descent must be"):
        LyapunovField(DoubleWell(), descent="sideways")  # type: ignore[arg-type]


def test_wrong_shapes_from_components() -> None:
    h = torch.ones(3, 2)
    with pytest.raises(ValueError, match="one value for each of the 3 systems, got shape \\[3, 2\\]"):
        LyapunovField(lambda x: x)(0.0, h)
    with pytest.raises(ValueError, match="tangent must have the state's shape \\[3, 2\\], got \\[3\\]"):
        LyapunovField(DoubleWell(), lambda x: x[:, 0])(0.0, h)
    with pytest.raises(TypeError, match=r"tangent must be a tensor of shape \[3, 2\].*got NoneType"):
        LyapunovField(DoubleWell(), lambda x: None)(0.0, h)  # type: ignore[arg-type, return-value]
    with pytest.raises(ValueError, match="Rosenbrock is for points of two entries or more"):
        LyapunovField(Rosenbrock())(0.0, torch.ones(3, 1))
    with pytest.raises(ValueError, match="DoubleWell needs a state of shape"):
        LyapunovField(DoubleWell())(0.0, torch.ones(3))
    with pytest.raises(ValueError, match="index has 2 entries"):
        LyapunovField(DoubleWell(), systems=Segments(torch.tensor([0, 0]), 1))(0.0, h)


@given(st.data())
def test_any_energy_can_be_drawn(data: st.DataObject) -> None:
    """The strategies of the test kit give energies of a system that are finite at moderate states."""
    energy = data.draw(energies(2, scales=(1e-3, 1e3)))
    assert torch.isfinite(energy(torch.ones(3, 2, dtype=torch.float64))).all()
