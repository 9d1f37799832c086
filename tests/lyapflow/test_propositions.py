"""The four propositions that the fields of this library rest on, proved by SymPy for all numbers at once.

Nothing here is a test of code: it is what the code may rely on. Every proof comes with variants that are wrong, which
must not be provable; most statements are identities of rational functions, where "not provable" means disproved.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sympy as sp
from sympy.core.function import AppliedUndef

alpha, beta = sp.symbols("alpha beta", real=True)
dimensions = pytest.mark.parametrize("n", [2, 3, 4])


def is_zero(expr: sp.Expr, norm: sp.Symbol | None = None, squared: sp.Expr | None = None) -> bool:
    """Whether a rational function of its symbols, functions and derivatives is zero: this decides, either way.

    Args:
        expr: The rational function.
        norm: A symbol that is known to be a square root, if there is one,
        squared: and what it is the square root of.
    """
    atoms = expr.atoms(sp.Derivative, AppliedUndef)
    numerator, _ = sp.fraction(sp.together(expr.xreplace({atom: sp.Dummy() for atom in atoms})))
    if norm is not None:
        numerator = sp.rem(numerator, norm**2 - squared, norm)
    return sp.expand(numerator) == 0


def all_zero(vector: sp.Matrix) -> bool:
    return all(is_zero(entry) for entry in vector)


def vector(name: str, n: int) -> sp.Matrix:
    return sp.Matrix(sp.symbols(f"{name}1:{n + 1}", real=True))


def tangent(M: sp.Matrix, g: sp.Matrix) -> sp.Matrix:
    """M without its part along g; all of M where g = 0."""
    return M if g.is_zero_matrix else M - M.dot(g) / g.dot(g) * g


def test_the_decision_can_fall_both_ways() -> None:
    a, b, r = sp.symbols("a b r")
    f = sp.Function("f")
    assert is_zero((a**2 - b**2) / (a - b) - a - b)
    assert not is_zero((a**2 - b**2) / (a - b) - a)
    assert is_zero(f(a).diff(a) * f(a) / f(a) - f(a).diff(a))
    assert not is_zero(f(a).diff(a) - f(a))
    assert is_zero(1 / r - r / (a**2 + b**2), r, a**2 + b**2)
    assert not is_zero(1 / r - r / (a**2 - b**2), r, a**2 + b**2)
    assert all_zero(sp.Matrix([0, a - a]))
    assert not all_zero(sp.Matrix([0, a]))


# -- 1: dissipation ----------------------------------------------------------------------------------------------------


@dimensions
def test_dissipation(n: int) -> None:
    """dV/dt = <g, -alpha g + beta T> = -alpha |g|^2."""
    g, M = vector("g", n), vector("M", n)

    def claim(velocity: sp.Matrix) -> sp.Expr:
        return g.dot(velocity) + alpha * g.dot(g)

    T = tangent(M, g)
    assert is_zero(T.dot(g))
    assert is_zero(claim(-alpha * g + beta * T))
    assert not is_zero(claim(-alpha * g + beta * M))  # without the projection: what remains is
    assert is_zero(claim(-alpha * g + beta * M) - beta * M.dot(g))
    assert not is_zero(claim(-alpha * g + beta * (M + M.dot(g) / g.dot(g) * g)))
    assert not is_zero(claim(alpha * g + beta * T))
    assert not is_zero(claim(-alpha * g + beta * (T + g)))


@dimensions
def test_dissipation_along_trajectories_of_any_energy(n: int) -> None:
    """The same for an unknown function V, with coefficients and direction that depend on the state and on time."""
    t = sp.Symbol("t", real=True)
    x = [sp.Function(f"x{i}", real=True)(t) for i in range(n)]
    V = sp.Function("V", real=True)(*x)
    g = sp.Matrix([V.diff(entry) for entry in x])
    M = sp.Matrix([sp.Function(f"M{i}", real=True)(t, *x) for i in range(n)])
    a, b = (sp.Function(name, real=True)(t, *x) for name in ("alpha", "beta"))
    rate = V.diff(t)  # the chain rule, as SymPy knows it
    assert rate.has(*[entry.diff(t) for entry in x])

    def along(velocity: sp.Matrix) -> sp.Expr:
        return rate.xreplace({entry.diff(t): v for entry, v in zip(x, velocity, strict=True)})

    assert is_zero(along(-a * g + b * tangent(M, g)) + a * g.dot(g))
    assert not is_zero(along(-a * g + b * M) + a * g.dot(g))
    assert not is_zero(along(a * g + b * tangent(M, g)) + a * g.dot(g))
    other = sp.Matrix([sp.Function("W", real=True)(*x).diff(entry) for entry in x])
    assert not is_zero(along(-a * g + b * tangent(M, other)) + a * g.dot(g))  # orthogonal to another energy's gradient


def test_energy_does_not_grow() -> None:
    g = vector("g", 3)
    a = sp.Symbol("a", nonnegative=True)
    assert (-a * g.dot(g)).is_nonpositive
    assert (-alpha * g.dot(g)).is_nonpositive is None  # without alpha >= 0 nothing can be said


def test_an_energy_that_depends_on_time_has_one_more_term() -> None:
    t = sp.Symbol("t", real=True)
    x = [sp.Function(f"x{i}", real=True)(t) for i in range(2)]
    s = sp.Symbol("s", real=True)
    V = sp.Function("V", real=True)
    g = sp.Matrix([V(s, *x).diff(entry).subs(s, t) for entry in x])
    T = tangent(vector("M", 2), g)
    rate = V(t, *x).diff(t).doit()
    rate = rate.xreplace({entry.diff(t): v for entry, v in zip(x, -alpha * g + beta * T, strict=True)})
    left = rate + alpha * g.dot(g)
    assert not is_zero(left)
    explicit = [term for term in sp.Add.make_args(V(t, *x).diff(t)) if not term.has(*[entry.diff(t) for entry in x])]
    assert len(explicit) == 1
    assert is_zero(left - explicit[0])


def two_systems() -> tuple[list[sp.Matrix], list[sp.Matrix], list[sp.Symbol], list[sp.Symbol]]:
    return (
        [vector("g", 2), vector("e", 3)],
        [vector("M", 2), vector("K", 3)],
        list(sp.symbols("alpha1:3", real=True)),
        list(sp.symbols("beta1:3", real=True)),
    )


def test_two_systems_with_their_own_inner_products() -> None:
    gradients, directions, alphas, betas = two_systems()
    for g, M, a, b in zip(gradients, directions, alphas, betas, strict=True):
        rate = g.dot(-a * g + b * tangent(M, g))
        assert is_zero(rate + a * g.dot(g))
        for entry in M:
            assert is_zero(rate.diff(entry))


def test_one_projection_for_two_systems_is_orthogonal_only_in_sum() -> None:
    gradients, directions, *_ = two_systems()
    joint = tangent(sp.Matrix.vstack(*directions), sp.Matrix.vstack(*gradients))
    parts = [joint[:2, :], joint[2:, :]]
    rates = [g.dot(-alpha * g + beta * T) for g, T in zip(gradients, parts, strict=True)]
    assert is_zero(sum(rates) + alpha * sum(g.dot(g) for g in gradients))
    for g, rate in zip(gradients, rates, strict=True):
        assert not is_zero(rate + alpha * g.dot(g))
        for entry in (*directions[0], *directions[1]):  # its own direction, and that of the other system
            assert not is_zero(rate.diff(entry))
    # And the energy of a system can grow: here M is along its gradient, and the other system pays.
    numbers = dict(zip((*gradients[0], *gradients[1]), (1, 0, 1, 0, 0), strict=True))
    numbers |= dict(zip((*directions[0], *directions[1]), (1, 0, -1, 0, 0), strict=True))
    assert [rate.subs(numbers | {alpha: 0, beta: 1}) for rate in rates] == [1, -1]


@dimensions
def test_the_projection_as_printed_is_orthogonal_for_unit_gradients_only(n: int) -> None:
    """T = M - <M, g/|g|> g has <T, g> = <M, g/|g|> |g| (1 - |g|)."""
    g, M = vector("g", n), vector("M", n)
    norm = sp.Symbol("r", positive=True)
    along = M.dot(g) / norm
    overlap = (M - along * g).dot(g)
    assert is_zero(overlap - along * norm * (1 - norm), norm, g.dot(g))
    assert not is_zero(overlap, norm, g.dot(g))
    assert is_zero(overlap.subs(norm, 1), g[0], 1 - (g.dot(g) - g[0] ** 2))
    assert is_zero((M - along * g / norm).dot(g), norm, g.dot(g))  # both factors of length one: orthogonal


# -- 2: flat regions ---------------------------------------------------------------------------------------------------


@dimensions
def test_flat_regions(n: int) -> None:
    """Where g = 0 the field is beta M, and the energy stays; gradient flow rests there."""
    M, g = vector("M", n), sp.zeros(n, 1)
    velocity = -alpha * g + beta * tangent(M, g)
    assert all_zero(velocity - beta * M)
    assert is_zero(g.dot(velocity))
    assert not all_zero(velocity)
    assert all_zero(velocity.subs(beta, 0))
    assert not all_zero(velocity + beta * M)


@dimensions
def test_a_constant_energy_is_flat(n: int) -> None:
    x, M = vector("x", n), vector("M", n)
    V = sp.Symbol("c", real=True)
    g = sp.Matrix([V.diff(entry) for entry in x])
    assert all_zero(-alpha * g + beta * tangent(M, g) - beta * M)


@dimensions
def test_the_field_need_not_be_continuous_at_a_flat_point(n: int) -> None:
    """As g goes to 0 along a direction u, the field tends to beta times M without its part along u."""
    M, u = vector("M", n), vector("u", n)
    s = sp.Symbol("s", positive=True)
    field = -alpha * s * u + beta * tangent(M, s * u)
    limit = field.applyfunc(lambda entry: sp.limit(sp.cancel(entry), s, 0))
    assert all_zero(limit - beta * tangent(M, u))
    assert not all_zero(limit - beta * M)  # the value at the point itself
    assert is_zero((limit - beta * M).dot(u) + beta * M.dot(u))  # they differ by all that M has along u
    along_M = limit.subs(dict(zip(u, M, strict=True)), simultaneous=True)
    assert all_zero(along_M)
    across = sp.Matrix([-M[1], M[0], *[0] * (n - 2)])
    assert all_zero(limit.subs(dict(zip(u, across, strict=True)), simultaneous=True) - beta * M)


# -- 3: gradient descent -----------------------------------------------------------------------------------------------

low, width, extra, p, q = sp.symbols("low width extra p q", positive=True)
high = low + width  # the largest eigenvalue, above the smallest
best = 2 / (high + low)
rate = (high - low) / (high + low)


def factor(step: sp.Expr, eigenvalue: sp.Expr) -> sp.Expr:
    """What a step multiplies the state by, along an eigenvector."""
    return 1 - step * eigenvalue


def is_positive(expr: sp.Expr) -> bool:
    return bool(sp.factor(expr).is_positive)


def test_a_step_acts_on_each_eigenvector_alone() -> None:
    """For V = x'Qx/2 the map x - step g is I - step Q, whose eigenvalues are the factors; Q in any position."""
    step, half = sp.symbols("step half", real=True)
    x = vector("x", 2)
    R = sp.Matrix([[1 - half**2, -2 * half], [2 * half, 1 - half**2]]) / (1 + half**2)  # by 2 atan(half), any rotation
    assert all_zero(R * R.T - sp.eye(2))
    Q = R * sp.diag(low, high) * R.T
    V = (x.T * Q * x)[0] / 2
    descended = x - step * sp.Matrix([V.diff(entry) for entry in x])
    scaled = R * sp.diag(factor(step, low), factor(step, high)) * R.T * x
    assert all_zero(descended - scaled)
    climbed = x + step * sp.Matrix([V.diff(entry) for entry in x])
    assert not all_zero(climbed - scaled)


def test_the_extreme_factors_balance_at_the_best_step() -> None:
    assert is_zero(factor(best, low) - rate)
    assert is_zero(factor(best, high) + rate)
    for step in (1 / high, 2 / high, 1 / low, -best):
        assert not is_zero(factor(step, low) + factor(step, high))
    step = sp.Symbol("step")
    assert sp.solve(factor(step, low) + factor(step, high), step) == [sp.cancel(best)]


def test_every_eigenvalue_between_contracts_at_least_as_fast() -> None:
    between = (p * low + q * high) / (p + q)  # every number between the two, for positive p and q
    assert is_positive(rate**2 - factor(best, between) ** 2)
    for outside in (low / (1 + p), high + p):
        assert is_positive(factor(best, outside) ** 2 - rate**2)


def test_any_other_step_is_worse_for_one_of_the_extremes() -> None:
    longer, shorter = best + extra, best - extra
    assert is_positive(-factor(longer, high) - rate)
    assert is_positive(factor(shorter, low) - rate)
    # Each of them alone would be content with another step.
    assert is_positive(rate - factor(best + extra / (1 + extra) * rate / low, low))
    # The usual step 1 / largest is one of the worse.
    assert is_positive(factor(1 / high, low) - rate)


def test_the_rate_is_that_of_the_condition_number() -> None:
    condition = high / low
    assert is_zero(rate - (condition - 1) / (condition + 1))
    assert is_positive(1 - rate)
    assert sp.limit(rate, width, sp.oo) == 1  # ill-conditioned: hardly any progress
    assert sp.limit(rate, width, 0) == 0


def test_steps_beyond_two_over_the_largest_eigenvalue_diverge() -> None:
    assert is_positive(-factor(2 / high + extra, high) - 1)
    assert is_positive(1 + factor(2 / (high + extra), high))  # and shorter ones do not
    assert factor(best, 0) == 1  # what an eigenvalue of 0 belongs to never moves


# -- 4: Newton's direction ---------------------------------------------------------------------------------------------


def symmetric(name: str, n: int) -> sp.Matrix:
    return sp.Matrix(n, n, lambda i, j: sp.Symbol(f"{name}{min(i, j)}{max(i, j)}", real=True))


def solve(A: sp.Matrix, b: sp.Matrix) -> sp.Matrix:
    """By Cramer's rule, for a determinant that is not zero."""
    return A.adjugate() * b / A.det()


@pytest.mark.parametrize("n", [2, 3])
def test_newtons_direction_splits(n: int) -> None:
    H, g = symmetric("H", n), vector("g", n)
    N = solve(H, g)
    assert all_zero(H * N - g)
    share = N.dot(g) / g.dot(g)
    T = N - share * g
    assert is_zero(T.dot(g))
    assert all_zero(T - tangent(N, g))
    assert all_zero(share * g + T - N)
    assert not is_zero(N.dot(g))  # without the projection
    assert not is_zero((N + share * g).dot(g))
    assert not all_zero(share * g - T - N)
    assert not all_zero(share * g - N)  # descent alone
    # As for the field: with alpha = share, beta = -1 and M = N it moves along -N.
    assert all_zero(-share * g - tangent(N, g) + N)


@pytest.mark.parametrize("n", [2, 3])
def test_the_split_is_unique(n: int) -> None:
    """<N - a g, g> = |g|^2 (share - a), which is zero for one a only."""
    H, g = symmetric("H", n), vector("g", n)
    N, a = solve(H, g), sp.Symbol("a", real=True)
    share = N.dot(g) / g.dot(g)
    assert is_zero((N - a * g).dot(g) - g.dot(g) * (share - a))
    assert not is_zero((N - a * g).dot(g))
    nonzero = sp.Matrix([sp.Symbol("u", positive=True), *g[1:]])
    assert nonzero.dot(nonzero).is_positive


def test_the_split_for_any_energy() -> None:
    x = sp.symbols("x y", real=True)
    V = sp.Function("V", real=True)(*x)
    g, H = sp.Matrix([V.diff(entry) for entry in x]), sp.hessian(V, x)
    N = solve(H, g)
    share, T = N.dot(g) / g.dot(g), tangent(N, g)
    assert all_zero(H * (share * g + T) - g)
    assert is_zero(T.dot(g))
    assert not all_zero(H * (share * g - T) - g)
    assert not all_zero(H * share * g - g)


@dimensions
def test_newton_on_a_quadratic(n: int) -> None:
    """V = x'Qx/2: N = x, alpha = <x, Qx>/|Qx|^2, and one full step reaches 0."""
    Q, x = symmetric("Q", n), vector("x", n)
    V = (x.T * Q * x)[0] / 2
    g, H = sp.Matrix([V.diff(entry) for entry in x]), sp.hessian(V, list(x))
    assert all_zero(g - Q * x)
    assert all_zero(H - Q)
    assert all_zero(H * x - g)  # so x is N, as H is invertible
    share = x.dot(Q * x) / (Q * x).dot(Q * x)
    assert is_zero(share - x.dot(g) / g.dot(g))
    T = tangent(x, g)
    assert all_zero(x - (share * g + T))
    assert not all_zero(x - share * g)  # descent alone, with the best step for it
    assert not all_zero(x - (share * g - T))
    assert not all_zero(H * g - g)


def diagonal_share(eigenvalue: Callable[[sp.Symbol], sp.Expr], n: int) -> sp.Expr:
    x = sp.symbols(f"x1:{n + 1}", real=True, nonzero=True)
    Q = sp.diag(*[eigenvalue(above) for above in sp.symbols(f"c1:{n + 1}", positive=True)])
    g = Q * sp.Matrix(x)
    return sp.Matrix(x).dot(g) / g.dot(g)


@pytest.mark.parametrize("n", [2, 3])
def test_the_share_exceeds_one_where_all_eigenvalues_are_below_one(n: int) -> None:
    """So a coefficient that ends in a sigmoid cannot reach Newton's direction there."""
    below = diagonal_share(lambda above: 1 / (1 + above), n)
    above = diagonal_share(lambda above: 1 + above, n)
    assert is_positive(below - 1)
    assert not is_positive(1 - below)
    assert is_positive(1 - above)
    assert is_positive(above)
    assert not is_positive(1 - diagonal_share(lambda c: c, n))  # any eigenvalues: on either side


def test_newton_climbs_where_the_energy_curves_down() -> None:
    assert is_positive(-diagonal_share(lambda above: -above, 2))


@pytest.mark.parametrize("n", [2, 3])
def test_a_singular_hessian_has_no_newton_direction(n: int) -> None:
    """Of rank 1, as that of a square of one number: no N at all, or more than one."""
    v, g = vector("v", n), vector("g", n)
    H = v * v.T
    assert is_zero(H.det())
    unknowns = sp.symbols(f"N1:{n + 1}")
    assert sp.linsolve((H, g), unknowns) == sp.EmptySet
    (family,) = sp.linsolve((H, 3 * v), unknowns)
    assert all_zero(H * sp.Matrix(family) - 3 * v)
    assert sp.Matrix(family).free_symbols & set(unknowns)
    damped = H + extra * sp.eye(n)
    assert is_positive(damped.det())
    assert all_zero(damped * solve(damped, g) - g)
