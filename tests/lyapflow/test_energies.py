"""Ready energies, tangents and coefficients: known values, minima, convexity, any division."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor, nn

from lyapflow import (
    Annealed,
    AntisymmetricTangent,
    ConvexEnergy,
    DescentShare,
    DoubleWell,
    Energy,
    Himmelblau,
    LogSumExp,
    LyapunovField,
    MLPCoefficient,
    MLPEnergy,
    MLPTangent,
    Quadratic,
    Rosenbrock,
    Rows,
    Segments,
    Single,
)
from lyapflow.testing import assert_tangent, energies


def gradient(energy: Energy, h: Tensor) -> Tensor:
    h = h.detach().requires_grad_()
    return torch.autograd.grad(energy(h).sum(), h)[0]


# -- known values ---------------------------------------------------------------------------------------------------


def test_himmelblau_has_four_minima() -> None:
    minima = torch.tensor(
        [[3.0, 2.0], [-2.805118, 3.131312], [-3.779310, -3.283186], [3.584428, -1.848126]], dtype=torch.float64
    )
    assert (Himmelblau()(minima) < 1e-9).all()
    assert (gradient(Himmelblau(), minima).abs() < 1e-3).all()


def test_rosenbrock() -> None:
    h = torch.tensor([[1.0, 1.0, 1.0], [-1.2, 1.0, 1.0]], dtype=torch.float64)
    assert torch.allclose(Rosenbrock()(h), torch.tensor([0.0, 24.2], dtype=torch.float64))
    assert torch.allclose(Rosenbrock(a=2.0, b=3.0)(torch.tensor([[2.0, 4.0]])), torch.zeros(1))


def test_double_well() -> None:
    well = DoubleWell(barrier=2.0, width=3.0)
    h = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 0.0], [3.0, 2.0]])
    assert torch.allclose(well(h), torch.tensor([0.0, 0.0, 2.0, 2.0]))
    assert torch.allclose(gradient(well, h[:3]), torch.zeros(3, 2))


def test_quadratic() -> None:
    Q = torch.tensor([[2.0, 1.0], [1.0, 3.0]])
    h = torch.tensor([[1.0, -1.0]])
    assert torch.allclose(Quadratic(Q, [0.5, 0.0])(h), torch.tensor([(0.25 * 2 + 2 * 0.5 * -1 + 3) / 2]))
    assert torch.allclose(gradient(Quadratic(Q), h), h @ Q)
    learned = Quadratic(nn.Parameter(torch.tensor([[1.0, 4.0], [0.0, 1.0]])))
    assert len(list(learned.parameters())) == 1
    assert torch.allclose(gradient(learned, h), h @ torch.tensor([[1.0, 2.0], [2.0, 1.0]]))


@given(st.integers(0, 100), st.floats(0.1, 3.0))
def test_log_sum_exp_is_a_smooth_maximum(seed: int, temperature: float) -> None:
    random = torch.Generator().manual_seed(seed)
    slopes, offsets = torch.randn(5, 3, generator=random).double(), torch.randn(5, generator=random).double()
    h = torch.randn(20, 3, generator=random).double()
    value = LogSumExp(slopes, offsets, temperature)(h)
    maximum = (h @ slopes.T + offsets).amax(-1)
    assert (value >= maximum - 1e-12).all()
    assert (value <= maximum + temperature * torch.tensor(5.0).log() + 1e-6).all()


# -- learned ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**16), st.floats(0.1, 3.0))
def test_convex_energies_are_convex_positive_and_zero_at_their_minimum(seed: int, size: float) -> None:
    """Along any line, for any weights."""
    random = torch.Generator().manual_seed(seed)
    minimum = torch.randn(3, generator=random, dtype=torch.float64)
    energy = ConvexEnergy(3, (8, 8), minimum, quadratic=1e-3).double()
    for parameter in energy.parameters():
        parameter.data = size * torch.randn(parameter.shape, generator=random, dtype=torch.float64)
    a, b = (3 * torch.randn(50, 3, generator=random, dtype=torch.float64) for _ in range(2))
    low, middle, high = energy(a), energy((a + b) / 2), energy(b)
    assert (middle <= (low + high) / 2 + 1e-12 * (low + high)).all()
    for copies in (1, 7):
        assert (energy(minimum.expand(copies, 3)) == 0).all()
    assert (low >= 1e-3 * (a - minimum).square().sum(-1)).all()
    assert (gradient(energy, minimum[None]) == 0).all()
    # No other stationary point: the gradient points away from the minimum everywhere.
    away = (gradient(energy, a) * (a - minimum)).sum(-1)
    assert (away >= low - 1e-12 * (1 + low)).all()


def test_convex_energies_have_second_derivatives() -> None:
    energy = ConvexEnergy(2, (6,)).double()
    h = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(energy, (h,))


@pytest.mark.parametrize("bounded", ["square", "softplus", "none"])
@pytest.mark.parametrize("activation", ["silu", "gelu", "tanh", "softplus", "elu", "relu"])
def test_mlp_energies(bounded: Any, activation: str) -> None:
    energy = MLPEnergy(2, (8, 8), activation, bounded)
    value = energy(torch.randn(50, 2))
    assert value.shape == (50,)
    if bounded != "none":
        assert (value >= 0).all()
    else:
        with torch.no_grad():
            energy.network[-1].bias.fill_(-1e3)  # type: ignore[union-attr, operator]
        assert (energy(torch.randn(50, 2)) < 0).all()
    assert repr(energy).startswith(f"MLPEnergy(\n  bounded={bounded!r}")


def test_annealed_energies_fade() -> None:
    energy = Annealed(Quadratic([2.0]), rate=2.0, floor=0.25)
    field = LyapunovField(energy)
    h = torch.ones(3, 1)
    values = [float(field.energy(t, h)[0]) for t in (0.0, 1.0, 100.0)]
    assert values[0] == 1.0
    assert values[1] == pytest.approx(0.25 + 0.75 * float(torch.exp(torch.tensor(-2.0))))
    assert values[2] == 0.25
    per_row = torch.tensor([[0.0], [1.0], [100.0]])  # as `solve` gives it
    assert torch.allclose(field.energy(per_row, h), torch.tensor(values))
    ragged = LyapunovField(energy, systems=Segments(torch.tensor([1, 0, 1]), 2))
    assert torch.allclose(ragged.energy(torch.tensor([[1.0], [0.0], [1.0]]), h), torch.tensor([1.0, 2 * values[1]]))


# -- any division ---------------------------------------------------------------------------------------------------


@given(st.data())
def test_systems_add_up(data: st.DataObject) -> None:
    """The same points as rows, as segments and as one: the energies of a system are those of its points."""
    energy = data.draw(energies(2, scales=(1e-2, 1e2)))
    h = torch.randn(6, 2, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))), dtype=torch.float64)
    index = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=6, max_size=6)))
    rows = energy.bind(Rows())(h)
    segments = energy.bind(Segments(index, 4))(h)
    assert torch.allclose(segments, torch.zeros(4, dtype=torch.float64).index_add(0, index, rows))
    assert torch.allclose(energy.bind(Single())(h), rows.sum().reshape(1))
    blocks = h.reshape(3, 2, 2)
    assert torch.allclose(energy.bind(Rows())(blocks), rows.reshape(3, 2).sum(-1))


# -- tangents ---------------------------------------------------------------------------------------------------------


@given(st.integers(2, 6), st.integers(0, 100))
def test_antisymmetric_tangents_need_no_projection(width: int, seed: int) -> None:
    torch.manual_seed(seed)
    energy, tangent = MLPEnergy(width, 8), AntisymmetricTangent(width)
    h = torch.randn(4, width)
    parts = LyapunovField(energy, tangent, projection="none").parts(0.0, h)
    assert_tangent(parts.tangent, parts.gradient)


def test_mlp_tangents() -> None:
    h = torch.randn(5, 2)
    assert (MLPTangent(2, 8, last_activation="tanh")(1e6 * h).abs() <= 1).all()
    timed = MLPTangent(2, 8, timed=True)
    field = LyapunovField(Quadratic([1.0, 1.0]), timed)
    assert not torch.equal(field(0.0, h), field(1.0, h))
    per_row = torch.arange(5.0)[:, None]
    assert torch.allclose(field(per_row, h)[2], field(2.0, h)[2], atol=1e-6)


def test_mlp_coefficients() -> None:
    h = 100 * torch.randn(200, 2)
    sigmoid, softplus, real = (MLPCoefficient(2, 8, within, 3.0)(h) for within in ("sigmoid", "softplus", "real"))
    assert ((sigmoid >= 0) & (sigmoid <= 3)).all()
    assert (softplus >= 0).all()
    below = MLPCoefficient(2, 8, "real")
    with torch.no_grad():
        below.network[-1].bias.fill_(-1e4)  # type: ignore[union-attr, operator]
    assert (below(h) < 0).all()
    assert real.shape == (200,)
    ragged = MLPCoefficient(2, 8).bind(Segments(torch.tensor([0, 0, 2]), 3))
    assert ragged(torch.randn(3, 2)).shape == (3,)


# -- wrong input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Quadratic(torch.ones(2, 3)), r"matrix must be \[d, d\].*\[2, 3\]"),
        (lambda: Quadratic([[1.0, 2.0], [0.0, 1.0]]), "matrix must be symmetric"),
        (lambda: Quadratic([1.0, 2.0], center=[1.0]), r"center must be \[2\]"),
        (lambda: Quadratic([1.0])(torch.ones(2, 3)), r"points of 1 entries, got a state of shape \[2, 3\]"),
        (lambda: DoubleWell(barrier=0), "barrier and width must be positive"),
        (lambda: Himmelblau()(torch.ones(1, 3)), "points of two entries"),
        (lambda: LogSumExp([1.0]), r"slopes must be \[K, d\]"),  # type: ignore[list-item]
        (lambda: LogSumExp([[1.0]], [1.0, 2.0]), r"offsets must be \[1\]"),
        (lambda: LogSumExp([[1.0]], temperature=0), "temperature must be positive"),
        (lambda: MLPEnergy(2, bounded="cube"), "bounded must be one of square, softplus, none, got 'cube'"),  # type: ignore[arg-type]
        (lambda: MLPEnergy(2, activation="swish"), "unknown activation 'swish'; known are: silu"),
        (lambda: MLPEnergy(0), "widths of a network must be positive"),
        (lambda: ConvexEnergy(2, quadratic=0.0), "quadratic must be positive"),
        (lambda: ConvexEnergy(2, minimum=torch.zeros(3)), r"minimum must be \[2\]"),
        (lambda: Annealed(Quadratic([1.0]), rate=-1.0), "rate must not be negative"),
        (lambda: AntisymmetricTangent(1), "nothing is orthogonal"),
        (lambda: MLPCoefficient(2, within="tanh"), "within must be one of"),  # type: ignore[arg-type]
        (lambda: MLPCoefficient(2, scale=0.0), "scale must be positive"),
        (lambda: DescentShare(-1.0), "rate must not be negative"),
    ],
)
def test_wrong_input(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_constants_must_be_real() -> None:
    with pytest.raises(TypeError, match=r"matrix must be of a floating point type, got torch\.int64"):
        Quadratic(torch.tensor([1, 2]))


@pytest.mark.parametrize("make", [Himmelblau, lambda systems: MLPEnergy(2, systems=systems), Rosenbrock().bind])
def test_systems_must_be_systems(make: Any) -> None:
    with pytest.raises(TypeError, match=r"systems must be Single\(\), Rows\(\) or Segments"):
        make(systems=3)
