"""Single checks, at one state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from solvers import Rows, Systems
from solvers.term import systems_of

from ..base import Energy
from ..inspection import ROUNDINGS, inspect_field, length
from ..newton import NewtonSplit, newton_split


def assert_dissipates(field: Any, h: Tensor, t: float = 0.0) -> None:
    """Assert that the energy of no system grows along a field with `energy(t, h)`, beyond rounding.

    For a :class:`LyapunovField` also that dV/dt is `-alpha |g|^2`, as promised.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic
    >>> from lyapflow.testing import assert_dissipates
    >>> assert_dissipates(LyapunovField(Quadratic([1.0, 2.0])), torch.randn(4, 2))
    >>> class Climbing:
    ...     def energy(self, t, h): return h.square().sum().reshape(1)
    ...     def __call__(self, t, h): return h
    >>> assert_dissipates(Climbing(), torch.ones(2))
    Traceback (most recent call last):
    AssertionError: the energy of system 0 grows: dV/dt = 4, where rounding allows 1.5e-05
    """
    systems = systems_of(field, None).bind(h)
    time = systems.spread(torch.full((systems.count,), t, dtype=h.dtype, device=h.device))
    seen = inspect_field(field, time, h, systems)
    if bool(seen.rises.any()):
        s = int(seen.rises.nonzero()[0])
        rate, allowed = float(seen.rate[s]), float(seen.allowance[s])
        raise AssertionError(f"the energy of system {s} grows: dV/dt = {rate:.3g}, where rounding allows {allowed:.1e}")
    if seen.mismatch is not None and seen.dissipation is not None:
        off = seen.mismatch > ROUNDINGS * torch.finfo(seen.rate.dtype).eps
        if bool(off.any()):
            s = int(off.nonzero()[0])
            rate, promised = float(seen.rate[s]), -float(seen.dissipation[s])
            raise AssertionError(f"in system {s} dV/dt = {rate:.9g}, but -alpha |g|^2 = {promised:.9g}")


def assert_tangent(tangent: Tensor, gradient: Tensor, systems: Systems | None = None) -> None:
    """Assert that a tangent is orthogonal to the gradient in every system, to rounding.

    >>> import torch
    >>> from lyapflow import project
    >>> from lyapflow.testing import assert_tangent
    >>> M, g = torch.randn(4, 3), torch.randn(4, 3)
    >>> assert_tangent(project(M, g), g)
    >>> assert_tangent(g, g)
    Traceback (most recent call last):
    AssertionError: the tangent of system 0 is not orthogonal to the gradient: <T, g> / |T| |g| = 1...
    """
    bound = (Rows() if systems is None else systems).bind(gradient)
    # At the scale of 1 nothing under- or overflows.
    T, g = (_at_length_one(x.detach(), bound) for x in (tangent, gradient))
    cosine = bound.inner(T, g).abs()
    bad = ~(cosine <= ROUNDINGS * torch.finfo(gradient.dtype).eps)
    if bool(bad.any()):
        s = int(bad.nonzero()[0])
        raise AssertionError(
            f"the tangent of system {s} is not orthogonal to the gradient: <T, g> / |T| |g| = {float(cosine[s]):.3g}"
        )


def _at_length_one(x: Tensor, systems: Systems) -> Tensor:
    size = length(systems, x)
    return x / systems.spread(torch.where(size > 0, size, 1.0))


def assert_newton(
    energy: Energy | Callable[[Tensor], Tensor], h: Tensor, systems: Systems | None = None, **settings: Any
) -> NewtonSplit:
    """Assert that Newton's direction splits into `alpha g + T` with T orthogonal to g, and solves its equation.

    Systems whose Hessian is reported as singular are held to the first two alone. Nothing is recorded for gradients.

    Args:
        energy: An energy.
        h: The state.
        systems: How it is divided, by default as the energy says.
        settings: Passed on to :func:`newton_split`.

    Returns:
        The split.

    >>> import torch
    >>> from lyapflow import Quadratic
    >>> from lyapflow.testing import assert_newton
    >>> bool(assert_newton(Quadratic([1.0, 3.0]), torch.ones(1, 2)).ok)
    True
    """
    with torch.no_grad():
        split = newton_split(energy, h, systems, **settings)
    division = systems if systems is not None else energy.systems if isinstance(energy, Energy) else Rows()
    bound = division.bind(h)
    again = bound.spread(split.alpha) * split.gradient + split.tangent
    off = length(bound, again - split.direction)
    parts = split.alpha.abs() * length(bound, split.gradient) + length(bound, split.tangent)
    bad = ~(off <= ROUNDINGS * torch.finfo(h.dtype).eps * parts)
    if bool(bad.any()):
        s = int(bad.nonzero()[0])
        raise AssertionError(f"in system {s} alpha g + T is off Newton's direction by {float(off[s]):.3g}")
    assert_tangent(split.tangent, split.gradient, bound)
    unsolved = ~split.converged & ~split.singular
    if bool(unsolved.any()):
        s = int(unsolved.nonzero()[0])
        left = float(split.residual[s])
        raise AssertionError(f"in system {s} Newton's equation is solved to {left:.1e} only, and nothing is said of it")
    return split
