"""Energies from SymPy expressions, checked against SymPy's own arithmetic and against autograd."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import pytest
import sympy as sp
import torch
from hypothesis import given
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from lyapflow import (
    AntisymmetricTangent,
    DoubleWell,
    Energy,
    Himmelblau,
    LyapunovField,
    Quadratic,
    Rosenbrock,
    Segments,
    Single,
    newton_split,
    odeint,
)
from lyapflow.symbolic import FUNCTIONS, REPLACED, SymbolicEnergy

x, y, z, k, p = sp.symbols("x y z k p")
POINT = (x, y, z)
SHAPES = [(), (0,), (3,), (2, 0), (2, 3)]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}


# -- random smooth expressions -----------------------------------------------------------------------------------------


def _leaves() -> st.SearchStrategy[sp.Expr]:
    powers = st.builds(sp.Pow, st.sampled_from(POINT), st.integers(1, 3))
    fractional = st.builds(
        lambda s, n: (1 + s**2) ** sp.Rational(n, 3), st.sampled_from(POINT), st.integers(-4, 4).filter(bool)
    )
    numbers = st.sampled_from([sp.Integer(2), sp.Rational(-1, 3), sp.pi, sp.sqrt(2), sp.exp(-1), sp.Float("0.1")])
    return st.one_of(powers, fractional, numbers)


# Bounded in their second derivatives, so that rounding errors stay at the scale of the result's.
SMOOTH = [
    sp.sin,
    sp.cos,
    sp.tanh,
    sp.atan,
    sp.asinh,
    sp.erf,
    lambda u: 1 / (1 + sp.exp(-u)),
    lambda u: sp.log(2 + sp.sin(u)),
    lambda u: sp.sqrt(1 + sp.cos(u) ** 2),
    lambda u: sp.exp(sp.cos(u)),
    lambda u: 1 / (2 + sp.sin(u)),
    lambda u: 2 ** sp.tanh(u),
    lambda u: sp.atan2(sp.sin(u), 3),
]


def expressions() -> st.SearchStrategy[sp.Expr]:
    def grow(inner: st.SearchStrategy[sp.Expr]) -> st.SearchStrategy[sp.Expr]:
        return st.one_of(
            st.builds(lambda f, u: f(u), st.sampled_from(SMOOTH), inner),
            st.builds(lambda u, v: u + v, inner, inner),
            st.builds(lambda u, v: u * sp.tanh(v), inner, inner),
        )

    return st.recursive(_leaves(), grow, max_leaves=5)


def points(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, 3, generator=torch.Generator().manual_seed(seed)).to(dtype) * 3 - 1.5


def exactly(expr: sp.Expr, at: Tensor, symbols: tuple[sp.Symbol, ...] = POINT) -> Tensor:
    """The expression at every point, `[..., d]` to `[...]`, computed by SymPy to 30 digits."""
    rows = at.reshape(-1, len(symbols)).tolist()
    values = [
        float(sp.sympify(expr).subs(dict(zip(symbols, map(sp.Rational, row), strict=True))).evalf(30)) for row in rows
    ]
    return torch.tensor(values, dtype=torch.float64).reshape(at.shape[:-1])


def assert_near(found: Tensor, expected: Tensor) -> None:
    """Equal up to rounding, relative to the largest entry, or to 1."""
    assert found.shape == expected.shape
    assert found.isfinite().all()
    scale = 1 + (expected.abs().max().item() if expected.numel() else 0.0)
    torch.testing.assert_close(found.double(), expected.double(), rtol=0, atol=TOLERANCE[found.dtype] * scale)


def gradient_by_autograd(energy: SymbolicEnergy, h: Tensor) -> Tensor:
    h = h.detach().requires_grad_()
    value = energy.density(h)
    if not value.requires_grad:
        return torch.zeros_like(h)
    return torch.autograd.grad(value.sum(), h, create_graph=True, materialize_grads=True)[0]


def hessian_by_autograd(energy: SymbolicEnergy, h: Tensor) -> Tensor:
    """Of the density, by two backward passes."""
    h = h.detach().requires_grad_()
    value = energy.density(h)
    nothing = torch.zeros_like(h)
    if not value.requires_grad:
        return torch.stack([nothing] * h.shape[-1], -2)
    (slope,) = torch.autograd.grad(value.sum(), h, create_graph=True, materialize_grads=True)
    rows = [
        torch.autograd.grad(slope[..., i].sum(), h, retain_graph=True, materialize_grads=True)[0]
        if slope.requires_grad
        else nothing
        for i in range(h.shape[-1])
    ]
    return torch.stack(rows, -2)


@given(expressions(), st.sampled_from(SHAPES), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99))
def test_values_are_those_of_sympy(expr: sp.Expr, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> None:
    h = points(shape, seed, dtype)
    value = SymbolicEnergy(expr, POINT).density(h)
    assert value.dtype == dtype
    assert_near(value, exactly(expr, h))


@given(expressions(), st.integers(0, 99))
def test_derivatives_are_those_of_sympy(expr: sp.Expr, seed: int) -> None:
    h, energy = points((2,), seed), SymbolicEnergy(expr, POINT)
    slopes = [sp.diff(expr, s) for s in POINT]
    assert_near(energy.gradient(h), torch.stack([exactly(slope, h) for slope in slopes], -1))
    rows = [torch.stack([exactly(sp.diff(slope, s), h) for s in POINT], -1) for slope in slopes]
    assert_near(energy.hessian(h), torch.stack(rows, -2))


@given(expressions(), st.sampled_from(SHAPES), st.sampled_from([torch.float32, torch.float64]), st.integers(0, 99))
def test_autograd_agrees_with_the_closed_forms(
    expr: sp.Expr, shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    h, energy = points(shape, seed, dtype), SymbolicEnergy(expr, POINT)
    gradient, hessian = energy.gradient(h), energy.hessian(h)
    assert gradient.dtype == hessian.dtype == dtype
    assert_near(gradient, gradient_by_autograd(energy, h))
    assert_near(hessian, hessian_by_autograd(energy, h))
    assert torch.equal(hessian, hessian.mT)


@given(expressions(), st.integers(0, 99))
def test_hessian_is_that_of_torch(expr: sp.Expr, seed: int) -> None:
    h, energy = points((), seed), SymbolicEnergy(expr, POINT)
    assert_near(energy.hessian(h), torch.autograd.functional.hessian(energy.density, h))


@given(expressions().filter(lambda expr: len(expr.free_symbols) > 0), st.integers(0, 99))
def test_first_and_second_derivatives_pass_numerical_checks(expr: sp.Expr, seed: int) -> None:
    h, energy = points((2,), seed).requires_grad_(), SymbolicEnergy(expr, POINT)
    assert gradcheck(energy.density, h)
    assert gradgradcheck(energy.density, h)


# -- every function ----------------------------------------------------------------------------------------------------

# Each with points where it is smooth; what is not listed is tried between -1.4 and 1.4.
SMOOTH_CASES: dict[str, sp.Expr] = {
    **{
        name: getattr(sp, name)(x * y + x)
        for name in ("exp", "sin", "cos", "tan", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "erfc", "sec", "sech")
    },
    "log": sp.log(x**2 + y + 3),
    "cot": sp.cot(2 + x / 2),
    "csc": sp.csc(2 + x / 2),
    "asin": sp.asin(x * y / 3),
    "acos": sp.acos(x * y / 3),
    "atan2": sp.atan2(x + 2 * y, x**2 + y**2 + 1) + sp.atan2(x, 2) + sp.atan2(-1, y - 3),
    "coth": sp.coth(x + 3),
    "csch": sp.csch(x + 3),
    "acosh": sp.acosh(2 + x**2 + y),
    "atanh": sp.atanh(x * y / 3),
}
KINKED_CASES: dict[str, sp.Expr] = {
    "Abs": sp.Abs(x - y) * x,
    "sign": sp.sign(x - y) * x**2,
    "Heaviside": sp.Heaviside(x - y) * x**2 + sp.Heaviside(y, sp.Rational(1, 10)) * x,
    "Max": sp.Max(x, y) * x + sp.Max(x, 0, y, x * y) ** 2,
    "Min": sp.Min(x, y) * x + sp.Min(x, 1, y, x * y) ** 2,
}


def test_every_function_has_a_case() -> None:
    known = {kind.__name__ for kind in (*FUNCTIONS, *REPLACED) if kind.__module__.startswith("sympy.")}
    assert known == set(SMOOTH_CASES) | set(KINKED_CASES)
    own = {kind for kind in FUNCTIONS if kind.__name__ not in known}
    reached = {type(node) for expr in KINKED_CASES.values() for node in _own_nodes(expr)}
    assert reached == own


def _own_nodes(expr: sp.Expr) -> list[Any]:
    formula = SymbolicEnergy(expr, (x, y))._formula
    return [node for node in sp.preorder_traversal(formula._expr) if type(node) in FUNCTIONS]


@pytest.mark.parametrize("name", [*SMOOTH_CASES, *KINKED_CASES])
def test_functions_and_their_derivatives(name: str) -> None:
    expr = {**SMOOTH_CASES, **KINKED_CASES}[name]
    energy = SymbolicEnergy(expr, (x, y))
    h = torch.tensor([[0.3, -0.7], [-1.1, 0.4], [1.3, 1.2], [-0.2, -0.9]], dtype=torch.float64)
    assert_near(energy.density(h), exactly(expr, h, (x, y)))
    assert_near(energy.gradient(h), gradient_by_autograd(energy, h))
    assert_near(energy.hessian(h), hessian_by_autograd(energy, h))
    inputs = h.requires_grad_()
    assert gradcheck(energy.density, inputs)
    assert gradgradcheck(energy.density, inputs)
    assert gradcheck(energy.gradient, inputs)
    if name in SMOOTH_CASES:
        for i, s in enumerate((x, y)):
            assert_near(energy.gradient(h.detach())[:, i], exactly(expr.diff(s), h, (x, y)))


@pytest.mark.parametrize("name", KINKED_CASES)
def test_derivatives_at_kinks_agree_with_autograd(name: str) -> None:
    energy = SymbolicEnergy(KINKED_CASES[name], (x, y))
    h = torch.tensor([[0.0, 0.0], [1.0, 1.0], [-1.0, -1.0], [0.5, 0.5], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    assert_near(energy.density(h), exactly(KINKED_CASES[name], h, (x, y)))
    assert_near(energy.gradient(h), gradient_by_autograd(energy, h))
    assert_near(energy.hessian(h), hessian_by_autograd(energy, h))


def test_kinks_have_the_mean_slope() -> None:
    h = torch.tensor([[-2.0], [0.0], [3.0]], dtype=torch.float64)

    def slopes(expr: sp.Expr) -> list[float]:
        return SymbolicEnergy(expr, x).gradient(h).flatten().tolist()

    assert slopes(sp.Abs(x)) == [-1, 0, 1]
    assert slopes(sp.Max(x, 0)) == [0, 0.5, 1]
    assert slopes(sp.Min(x, 0)) == [1, 0.5, 0]
    assert slopes(sp.sign(x)) == slopes(sp.Heaviside(x)) == [0, 0, 0]
    assert SymbolicEnergy(sp.Abs(x), x).hessian(h).flatten().tolist() == [0, 0, 0]


def test_absolute_value_of_what_sympy_does_not_know_to_be_real() -> None:
    """SymPy's own derivative of this contains derivatives of real parts."""
    energy = SymbolicEnergy(sp.Abs(sp.log(x)), x)
    h = torch.tensor([[0.5], [4.0]], dtype=torch.float64)
    assert torch.equal(energy.gradient(h).flatten(), torch.tensor([-2.0, 0.25], dtype=torch.float64))


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (sp.sqrt(2), 2**0.5),
        (sp.pi, torch.pi),
        (sp.E, 2.718281828459045),
        (sp.Rational(1, 3), 1 / 3),
        (sp.sqrt(2) * sp.sqrt(3) - sp.sin(1), 6**0.5 - 0.8414709848078965),
        (sp.gamma(sp.Rational(1, 3)), 2.678938534707748),  # a function of numbers alone needs no tensor
        (sp.Float(0.1) + sp.Float(0.2), 0.1 + 0.2),  # all digits, also the last
        (sp.Integer(10) ** 30, 1e30),  # more than an integer of 64 bits
        (sp.Integer(0), 0.0),
        (-7, -7.0),
        ("1/7", 1 / 7),
    ],
)
def test_constants_have_all_digits_and_the_shape_of_the_state(expr: Any, value: float) -> None:
    energy = SymbolicEnergy(expr, "x y")
    for shape in SHAPES:
        h = torch.zeros(*shape, 2, dtype=torch.float64)
        torch.testing.assert_close(energy.density(h), h.new_full(shape, value), rtol=3e-16, atol=0)
        assert torch.equal(energy.gradient(h), h.new_zeros(*shape, 2))
        assert torch.equal(energy.hessian(h), h.new_zeros(*shape, 2, 2))
    scaled = SymbolicEnergy(sp.sympify(expr) * x, "x y").gradient(torch.ones(1, 2, dtype=torch.float64))
    assert scaled[0].tolist() == pytest.approx([value, 0.0], rel=3e-16)


@given(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False), st.floats(-1e9, 1e9))
def test_floats_keep_their_last_digit(a: float, b: float) -> None:
    h = torch.ones(1, 1, dtype=torch.float64)
    assert SymbolicEnergy(sp.Float(a), x).density(h).item() == a
    assert SymbolicEnergy(sp.Float(b) * sp.sin(x), x).gradient(0 * h).item() == b


def test_constants_that_sympy_left_as_they_are() -> None:
    expr = sp.Abs(-2, evaluate=False) * x + sp.Max(1, 2, evaluate=False)
    assert SymbolicEnergy(expr, x).density(torch.tensor([[3.0]])).item() == 8


def test_constants_that_are_shared_between_terms() -> None:
    """sqrt(2) is a common subexpression here, within a function that has no other argument."""
    energy = SymbolicEnergy(sp.exp(sp.sqrt(2)) + sp.sqrt(2) * x + sp.sin(sp.sqrt(2) * x), x)
    assert energy.density(torch.zeros(1, 1, dtype=torch.float64)).item() == pytest.approx(4.113250378782927, rel=1e-15)


@pytest.mark.parametrize("shape", SHAPES)
def test_symbols_that_are_not_in_the_expression(shape: tuple[int, ...]) -> None:
    h = torch.rand(*shape, 3)
    energy = SymbolicEnergy(y**2 / 2, (x, y, z))
    assert torch.equal(energy.density(h), h[..., 1] ** 2 / 2)
    assert torch.equal(energy.gradient(h), h * torch.tensor([0.0, 1.0, 0.0]))
    assert torch.equal(energy.hessian(h), torch.diag(torch.tensor([0.0, 1.0, 0.0])).expand(*shape, 3, 3))


def test_results_are_the_callers_own() -> None:
    """Broadcast results are not views of one number."""
    h = torch.ones(2, 2)
    for result in (
        SymbolicEnergy("3", "x y").density(h),
        SymbolicEnergy("k", "x y", {"k": 2}).density(h).detach(),
        SymbolicEnergy("x + 2*y", "x y").gradient(h),
        SymbolicEnergy("x**2 + 2*y", "x y").hessian(h),
    ):
        expected = result.clone()
        result[0] += 1
        expected[0] += 1
        assert torch.equal(result, expected)


# -- pieces ------------------------------------------------------------------------------------------------------------


def test_only_the_chosen_piece_counts() -> None:
    """The other one has no value, or an infinite slope, and must not turn a gradient of zero into NaN."""
    pieces = [
        sp.Piecewise((sp.sqrt(x), x > 0), (0, True)),
        sp.Piecewise((0, x <= 0), (x ** sp.Rational(5, 2), True)),
        sp.Piecewise((sp.log(x) * k, x > 1), (x - 1, True)) + sp.log(2 + x),
        sp.Piecewise((1 / x, sp.Abs(x) > sp.Rational(1, 2)), (sp.Piecewise((sp.sqrt(-x), x < 0), (x**2, True)), True)),
    ]
    h = torch.tensor([[-1.0], [-0.25], [0.0], [0.25], [4.0]], dtype=torch.float64)
    for piece in pieces:
        parameters = {k: 3.0} if k in piece.free_symbols else None
        energy = SymbolicEnergy(piece, x, parameters)
        assert_near(energy.density(h), exactly(piece.subs(k, 3), h, (x,)))
        assert_near(energy.gradient(h), gradient_by_autograd(energy, h))
        assert_near(energy.hessian(h), hessian_by_autograd(energy, h))
        total = energy.gradient(h.requires_grad_()).sum() + energy.density(h).sum()
        for slope in torch.autograd.grad(total, [h, *energy.parameters()]):
            assert slope.isfinite().all()
        h = h.detach()


def test_conditions_first_that_holds_wins() -> None:
    expr = sp.Piecewise(
        (1, (x > 0) & (y > 0)),
        (sp.sqrt(2), sp.Eq(x, 0) | (x < -1)),
        (x**2, sp.Ne(y, 3) & ~((x > y) | (y > 2))),
        (sp.Piecewise((x, y > k), (y**2, True)), True),
    )
    h = torch.tensor([[a, b] for a in (-2.0, -1.0, 0.0, 1.25) for b in (-2.0, 0.0, 1.5, 2.5, 3.0)], dtype=torch.float64)
    energy = SymbolicEnergy(expr, (x, y), {k: -1})
    assert torch.equal(energy.density(h), exactly(expr.subs(k, -1), h, (x, y)))


def test_pieces_that_cover_everything_without_saying_so() -> None:
    expr = sp.Piecewise((x**2, x < -1), (1, (x >= -1) & (x <= 1)), (x**4, x > 1))
    h = torch.tensor([[-2.0], [0.0], [2.0]])
    assert SymbolicEnergy(expr, x).density(h).tolist() == [4, 1, 16]


def test_constants_in_pieces_are_of_the_states_precision() -> None:
    expr = sp.Piecewise((sp.sqrt(2), x > 0), (sp.Rational(1, 10), True))
    value = SymbolicEnergy(expr, x).density(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    assert value.tolist() == [2**0.5, 0.1]
    assert SymbolicEnergy(expr, x).density(torch.ones(2, 1)).dtype == torch.float32


# -- symbols -----------------------------------------------------------------------------------------------------------


def test_names_of_symbols_do_not_meet_those_of_the_code() -> None:
    """Names of functions, of Python's, and of the common subexpressions that SymPy makes up."""
    names = ["exp", "x0", "torch", "lambda", "x1", "x-1", "sqrt", "piecewise_0"]
    symbols = [sp.Symbol(name, real=True) for name in names]
    terms = [sp.sin(a * b) + sp.cos(sp.sin(a * b)) + sp.exp(a) * sp.sqrt(1 + b**2) for a, b in pairwise(symbols)]
    expr = sum(terms) + sp.Piecewise((symbols[0], symbols[1] > 0), (symbols[2], True))
    h = torch.rand(2, len(symbols), dtype=torch.float64)
    energy = SymbolicEnergy(expr, symbols)
    assert_near(energy.density(h), exactly(expr, h, tuple(symbols)))
    assert_near(energy.gradient(h), gradient_by_autograd(energy, h))


def test_symbols_by_name_and_by_object() -> None:
    h = torch.tensor([[2.0, 3.0]])
    positive = sp.Symbol("x", positive=True)
    for expr, symbols in [
        ("x - 2*y", "x y"),
        ("x - 2*y", "x, y"),
        ("x - 2*y", ["x", y]),
        (x - 2 * y, (x, y)),
        (x - 2 * y, "x y"),
        (positive - 2 * y, "x y"),  # a name means the symbol of that name
        (positive - 2 * y, [positive, y]),
    ]:
        assert SymbolicEnergy(expr, symbols).density(h).item() == -4
    assert SymbolicEnergy("y**2", "y").symbols == (y,)
    assert SymbolicEnergy("a2 - a0", "a:3").density(torch.tensor([1.0, 2.0, 5.0])).item() == 4
    assert SymbolicEnergy(x**2, x).expr == x**2
    assert SymbolicEnergy("beta*x", "x beta").density(h).item() == 6  # not SymPy's function of that name


def test_symbols_are_real() -> None:
    energy = SymbolicEnergy(sp.sqrt(x**2) + sp.re(y) + sp.im(y) + sp.conjugate(x) * y, "x y")
    assert energy.density(torch.tensor([[-2.0, 3.0]])).item() == 2 + 3 - 6


# -- parameters --------------------------------------------------------------------------------------------------------


def test_parameters_are_learned() -> None:
    energy = SymbolicEnergy(k * x**2 + sp.exp(p) * y, "x y", {k: 2, "p": 0}).double()
    assert isinstance(energy.k, nn.Parameter)
    assert dict(energy.named_parameters()).keys() == {"k", "p"}
    h = torch.tensor([[3.0, 5.0], [1.0, 1.0]], dtype=torch.float64)
    energy(h).sum().backward()
    assert energy.k.grad is not None
    assert energy.p.grad is not None
    assert (energy.k.grad.item(), energy.p.grad.item()) == (10.0, 6.0)
    (mixed,) = torch.autograd.grad(energy.gradient(h).sum(), energy.k)
    assert mixed.item() == 8.0
    with torch.no_grad():
        energy.k.fill_(5.0)
    assert energy.density(h).tolist() == [50.0, 6.0]


def test_derivatives_in_parameters_pass_numerical_checks() -> None:
    energy = SymbolicEnergy(k * sp.cosh(x) + (1 + x**2) ** p + sp.Max(k, x * y), "x y", {k: 0.4, p: 1.7}).double()
    h = torch.tensor([[0.5, -0.2], [1.0, 0.9]], dtype=torch.float64, requires_grad=True)

    def value(h: Tensor, k: Tensor, p: Tensor) -> Tensor:
        return torch.func.functional_call(energy, {"k": k, "p": p}, (h,))

    assert gradcheck(value, (h, energy.k, energy.p))
    assert gradgradcheck(value, (h, energy.k, energy.p))


def test_powers_with_a_learned_exponent_at_zero() -> None:
    """SymPy's derivative of x**p is p*x**p/x, which is NaN there."""
    energy = SymbolicEnergy(x**p + sp.Abs(y) ** (p + 1), "x y", {p: 2})
    h = torch.tensor([[0.0, 0.0], [3.0, -2.0]])
    assert energy.gradient(h).tolist() == [[0, 0], [6, -12]]
    assert energy.hessian(h).tolist() == [[[2, 0], [0, 0]], [[2, 0], [0, 12]]]
    assert torch.equal(energy.hessian(h), hessian_by_autograd(energy, h))
    (slope,) = torch.autograd.grad(energy.density(h).sum(), energy.p)
    assert slope.isfinite()


@pytest.mark.parametrize("shape", SHAPES)
def test_parameters_take_the_precision_of_the_state(shape: tuple[int, ...]) -> None:
    energy = SymbolicEnergy("exp(k) + x/3", "x", {"k": 1})  # of float32
    h = torch.zeros(*shape, 1, dtype=torch.float64)
    assert_near(energy.density(h), torch.full(shape, 2.718281828459045, dtype=torch.float64))
    assert energy.double().density(h.float()).dtype == torch.float32
    assert energy.density(h.float()).shape == shape


# -- agreement with the energies that are written by hand --------------------------------------------------------------


def _pairs() -> list[tuple[str, SymbolicEnergy, Energy]]:
    u = sp.symbols("u0:4", real=True)
    rosenbrock = sum(100 * (u[i + 1] - u[i] ** 2) ** 2 + (1 - u[i]) ** 2 for i in range(3))
    well = sp.Rational(1, 4) / 2**4 * (u[0] ** 2 - 4) ** 2 + (u[1] ** 2 + u[2] ** 2) / 2
    Q, c, q = sp.Matrix([[2, 1], [1, 3]]), sp.Matrix([1, -2]), sp.Matrix(u[:2])
    quadratic = ((q - c).T * Q * (q - c))[0] / 2
    return [
        ("rosenbrock", SymbolicEnergy(rosenbrock, u), Rosenbrock()),
        ("himmelblau", SymbolicEnergy("(x**2 + y - 11)**2 + (x + y**2 - 7)**2", "x y"), Himmelblau()),
        ("double well", SymbolicEnergy(well, u[:3]), DoubleWell(width=2.0)),
        ("quadratic", SymbolicEnergy(quadratic, u[:2]), Quadratic([[2.0, 1.0], [1.0, 3.0]], [1.0, -2.0])),
    ]


@pytest.mark.parametrize(("symbolic", "written"), [pair[1:] for pair in _pairs()], ids=[pair[0] for pair in _pairs()])
def test_agrees_with_analytic_energies(symbolic: SymbolicEnergy, written: Any) -> None:
    h = torch.randn(5, len(symbolic.symbols), dtype=torch.float64)
    written = written.double()
    assert_near(symbolic(h), written(h))
    field, expected = (LyapunovField(e, lambda h: h.flip(-1), alpha=0.7) for e in (symbolic, written))
    assert_near(symbolic.gradient(h), expected.parts(0.0, h).gradient)
    assert_near(field(0.0, h), expected(0.0, h))
    split, other = newton_split(symbolic, h), newton_split(written, h)
    torch.testing.assert_close(split.direction, other.direction, rtol=1e-9, atol=1e-12)
    direct = torch.linalg.solve(symbolic.hessian(h), symbolic.gradient(h))
    torch.testing.assert_close(split.direction, direct, rtol=1e-9, atol=1e-12)


# -- in use ------------------------------------------------------------------------------------------------------------


def test_in_a_field() -> None:
    energy = SymbolicEnergy((x**2 - 1) ** 2 / 4 + sp.log(sp.cosh(y)) + k * x, "x y", {k: 0.1})
    field = LyapunovField(energy, AntisymmetricTangent(2))
    h = torch.randn(4, 2)
    velocity = field(0.0, h)
    assert velocity.requires_grad
    with torch.no_grad():
        assert torch.equal(field(0.0, h), velocity)
        assert not field(0.0, h).requires_grad
    with torch.inference_mode():
        assert torch.equal(field(0.0, h), velocity)
    parts = field.parts(0.0, h)
    assert torch.allclose(parts.gradient, energy.gradient(h), atol=1e-6)
    assert torch.allclose(parts.rate, -parts.dissipation, atol=1e-6)
    velocity.square().sum().backward()
    assert energy.k.grad is not None


def test_along_a_flow() -> None:
    energy = SymbolicEnergy((x**2 - 1) ** 2 / 4 + y**2 * k / 2, "x y", {k: 2}).double()
    h0 = torch.randn(4, 2, dtype=torch.float64)
    states = odeint(LyapunovField(energy, AntisymmetricTangent(2).double()), h0, torch.linspace(0.0, 2.0, 9))
    energies = torch.stack([energy(h) for h in states])
    assert (energies.diff(dim=0) < 0).all()
    (slope,) = torch.autograd.grad(states[-1].sum(), energy.k)
    assert slope.isfinite()
    # Without a tangent, y falls as exp(-k t).
    fall = odeint(LyapunovField(energy), h0, torch.tensor([0.0, 0.5], dtype=torch.float64))[-1]
    torch.testing.assert_close(fall[:, 1], h0[:, 1] * torch.exp(torch.tensor(-1.0).double()), rtol=1e-5, atol=0)


def test_systems() -> None:
    h = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert SymbolicEnergy("x + y", "x y", systems=Segments(torch.tensor([0, 0, 1]), 2))(h).tolist() == [10, 11]
    single = SymbolicEnergy("x + y", "x y", systems=Single())
    assert single(h).tolist() == [21]
    assert single(h[0]).tolist() == [3]
    rows = SymbolicEnergy("x*k + y", "x y", {"k": 2})
    shared = rows.bind(Single())
    assert shared(h).tolist() == [30]
    assert shared.k is rows.k
    assert rows.systems != shared.systems


@pytest.mark.parametrize("warm", [True, False], ids=["after use", "before use"])
def test_copies_and_pickles(warm: bool) -> None:
    expr = sp.Piecewise((sp.sqrt(1 + x), x > 0), (sp.Abs(x) * y, True)) + k * sp.Max(x, y)
    energy = SymbolicEnergy(expr, "x y", {k: 2}, systems=Single())
    h = torch.randn(3, 2)
    if warm:
        energy.hessian(h), energy.gradient(h), energy(h)
    saved = io.BytesIO()
    torch.save(energy, saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    for twin in (pickle.loads(pickle.dumps(energy)), copy.deepcopy(energy), copy.copy(energy), loaded):
        assert twin.expr == expr
        assert twin.symbols == (x, y)
        assert torch.equal(twin(h), energy(h))
        assert torch.equal(twin.gradient(h), energy.gradient(h))
        assert torch.equal(twin.hessian(h), energy.hessian(h))
    deep = copy.deepcopy(energy)
    assert deep._formula is energy._formula  # nothing is generated again
    with torch.no_grad():
        deep.k.fill_(7.0)
    assert energy.k.item() == 2.0
    deep.load_state_dict(energy.state_dict())
    assert torch.equal(deep(h), energy(h))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # used by forward mode
def test_under_vmap_and_forward_mode() -> None:
    expr = sp.Piecewise((sp.sqrt(x), x > 0), (x**2 * sp.sin(y), True)) + sp.Max(x, y) ** 2 + sp.exp(x)
    energy, h = SymbolicEnergy(expr, "x y"), torch.randn(6, 2, dtype=torch.float64)
    assert_near(torch.func.vmap(torch.func.hessian(energy.density))(h), energy.hessian(h))
    _, slope = torch.func.jvp(energy.density, (h,), (torch.ones_like(h),))
    assert_near(slope, energy.gradient(h).sum(-1))


@pytest.mark.slow
def test_compiles_in_one_graph() -> None:
    expr = sp.Piecewise((sp.sqrt(x), x > 0), (x**2 * sp.sin(y), True)) + sp.Max(x, y) ** 2 * k
    energy, h = SymbolicEnergy(expr, "x y", {k: 2}), torch.randn(6, 2)
    compiled = torch.compile(energy, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(h), energy(h), rtol=1e-6)
    found, expected = (torch.autograd.grad(f(h).sum(), energy.k)[0] for f in (compiled, energy))
    assert torch.allclose(found, expected, rtol=1e-6)


def test_on_a_device(device: torch.device) -> None:
    expr = sp.Piecewise((x * k, x > 0), (1, True)) + sp.atan2(x, 2) + sp.pi
    energy = SymbolicEnergy(expr, "x y", {k: 2}).to(device)
    h = torch.randn(4, 2, device=device)
    for result in (energy(h), energy.gradient(h), energy.hessian(h)):
        assert result.device == h.device
        assert result.isfinite().all()


def test_representation() -> None:
    text = repr(SymbolicEnergy("x**2 + k*y", "x y", {"k": 2}))
    assert text == "SymbolicEnergy(k*y + x**2, symbols=[x, y], parameters=[k])"
    assert repr(SymbolicEnergy(x, "x y")) == "SymbolicEnergy(x, symbols=[x, y])"
    assert len(repr(SymbolicEnergy(sum(sp.sin(i * x) for i in range(99)), x))) < 250


# -- errors ------------------------------------------------------------------------------------------------------------

real_x = sp.Symbol("x", real=True)
WRONG: list[tuple[Any, Any, Any, type[Exception], str]] = [
    ("x + b + a", "x", None, ValueError, r"neither in symbols nor in parameters: \['a', 'b'\]"),
    (real_x**2, [x], None, ValueError, "but other assumptions"),
    ("x", "x y x", None, ValueError, r"got \['x'\] more than once"),
    ("x", [x, real_x], None, ValueError, r"got \['x'\] more than once"),
    ("x", "x", {"x": 1}, ValueError, r"got \['x'\] more than once"),
    ("x", "", None, TypeError, "symbols must be SymPy symbols or their names, got ''"),
    ("x", [], None, ValueError, "symbols must name at least one symbol"),
    ("x", [x, 1], None, TypeError, "symbols must be SymPy symbols or their names, got 1"),
    ("x", {x}, None, TypeError, "symbols must be SymPy symbols or their names, got {x}"),
    ("A", sp.Symbol("A", commutative=False), None, ValueError, "symbols must be real numbers, but A"),
    ("A", sp.Symbol("A", imaginary=True), None, ValueError, "symbols must be real numbers, but A"),
    ("x", "x", {"k": 1}, ValueError, r"parameters has symbols that expr does not contain: \['k'\]"),
    ("k*x", "x", {"k": "two"}, TypeError, r"parameters\['k'\] must be a number, got 'two'"),
    ("k*x", "x", {"k": float("nan")}, ValueError, r"parameters\['k'\] must be finite"),
    ("k*x", "x", ["k"], TypeError, "parameters must map symbols to numbers, got list"),
    ("k*x", "x", {1: 2.0}, TypeError, "parameters must be SymPy symbols or their names, got 1"),
    ("gradient*x", "x", {"gradient": 1}, ValueError, "'gradient' is an attribute of every energy"),
    (sp.Symbol("a.b") * x, "x", {"a.b": 1}, ValueError, "has a dot"),
    ("x +", "x", None, ValueError, "expr must be an expression that SymPy can read, got 'x [+]'"),
    ("beta*x", "x", None, ValueError, "expr must be an expression that SymPy can read"),
    (None, "x", None, TypeError, "expr must be a scalar SymPy expression or a string, got None"),
    (sp.Matrix([x]), "x", None, TypeError, "expr must be a scalar"),
    (sp.MatrixSymbol("A", 2, 2), "x", None, TypeError, "expr must be a scalar"),
    ("(x, y)", "x y", None, TypeError, "expr must be a scalar"),
    (x > 0, "x", None, TypeError, "expr must be a scalar"),
    (sp.Eq(x, y), "x y", None, TypeError, "expr must be a scalar"),
    (x + sp.I, "x", None, ValueError, "expr must be real, with numbers that floats can hold, but it contains I"),
    (x * sp.Integer(-1) ** sp.Rational(1, 3), "x", None, ValueError, "expr must be real"),
    (sp.sqrt(-1 - x**2), "x", None, ValueError, "expr must be real, but it is not for any real x"),
    (x + sp.oo, "x", None, ValueError, "but it contains oo"),
    (x + sp.nan, "x", None, ValueError, "but it contains nan"),
    (x * sp.Integer(10) ** 400, "x", None, ValueError, "numbers that floats can hold"),
    ("gamma(x) + foo(x)", "x", None, ValueError, r"cannot be computed with tensors: \['foo', 'gamma'\]; known are Abs"),
    (sp.Sum(x**k, (k, 0, 3)), "x", None, ValueError, r"\['Sum'\].*expr.doit\(\)"),
    (sp.Derivative(sp.Function("f")(x), x), "x", None, ValueError, r"\['Derivative'\]"),
    (sp.DiracDelta(x), "x", None, ValueError, r"\['DiracDelta'\]"),
    (sp.floor(x), "x", None, ValueError, r"\['floor'\]"),
    (sp.Piecewise((1, sp.floor(x) > 0), (x, True)), "x", None, ValueError, r"\['floor'\]"),
    (sp.Heaviside(x, y), "x y", None, ValueError, "Heaviside with a variable for its value at 0"),
    (sp.Piecewise((x, x > 0)), "x", None, ValueError, r"no condition of this holds: Piecewise\(\(x, x > 0\)\)"),
    (sp.Piecewise((x, x > y), (y, x < y)), "x y", None, ValueError, r"end it with \(value, True\)"),
]  # fmt: skip


@pytest.mark.parametrize(("expr", "symbols", "parameters", "kind", "message"), WRONG)
def test_wrong_arguments(expr: Any, symbols: Any, parameters: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        SymbolicEnergy(expr, symbols, parameters)


def test_wrong_systems() -> None:
    with pytest.raises(TypeError, match=r"systems must be Single\(\), .* got int"):
        SymbolicEnergy("x", "x", systems=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["density", "gradient", "hessian"])
def test_wrong_states(method: str) -> None:
    call = getattr(SymbolicEnergy("x + y", "x y"), method)
    for shape in ((), (3,), (2, 3), (2, 0)):
        with pytest.raises(ValueError, match=r"points of 2 entries \(x, y\), got a state of shape \["):
            call(torch.zeros(shape))
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=f"got {dtype}"):
            call(torch.zeros(4, 2, dtype=dtype))


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100).stdout


def test_lyapflow_does_not_load_sympy() -> None:
    """Not more of it than torch does."""
    code = "import sys, torch; before = 'sympy' in sys.modules; import lyapflow; print(before, 'sympy' in sys.modules)"
    before, after = run_python(code).split()
    assert before == after


def test_without_sympy() -> None:
    code = """
import sys
sys.modules["sympy"] = None
import lyapflow
try:
    import lyapflow.symbolic
except ImportError as error:
    print(error)
"""
    assert run_python(code).strip() == 'lyapflow.symbolic needs sympy: pip install "lyapflow[symbolic]"'
