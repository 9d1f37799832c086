"""Diagonally implicit Runge-Kutta methods: each stage is a nonlinear equation, solved without forming a matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from ..root_finding import Newton, attach_root, find_root
from ..term import Term
from .base import Method, Step, register
from .explicit import combine, move, sparse


@dataclasses.dataclass(frozen=True)
class ImplicitTableau:
    """The coefficients of a diagonally implicit Runge-Kutta method.

    Args:
        a: The rows, each with the weights of the stages up to and including its own.
        b: The weights of the solution.
        order: The order of the solution.
        error: The weights of the local error estimate, solution minus embedded solution.
        error_order: The power of the step size in the error estimate.
    """

    a: Sequence[Sequence[float]]
    b: Sequence[float]
    order: int
    error: Sequence[float] | None = None
    error_order: int | None = None

    def __post_init__(self) -> None:
        if any(len(row) != i + 1 for i, row in enumerate(self.a)) or len(self.a) != len(self.b):
            raise ValueError("ImplicitTableau: row i of `a` must have i + 1 entries, and `b` one for each row")
        if abs(sum(self.b) - 1) > 1e-12:
            raise ValueError(f"ImplicitTableau: the weights `b` must sum to 1, got {sum(self.b)}")


@final
class ImplicitRK(Method):
    """The method of an :class:`ImplicitTableau`.

    >>> from solvers import ImplicitRK, ImplicitTableau, Newton
    >>> ImplicitRK("backward_euler", ImplicitTableau(a=((1.0,),), b=(1.0,), order=1), Newton(max_iterations=5))
    <method backward_euler, order 1>
    """

    implicit = True

    def __init__(
        self, name: str, tableau: ImplicitTableau, newton: Newton | None = None, *, fixed_by_default: bool = False
    ) -> None:
        self.name = name
        self.tableau = tableau
        self.newton = Newton() if newton is None else newton
        self.order = tableau.order
        self.adaptive = tableau.error is not None
        self.fixed_by_default = fixed_by_default
        self.stages = len(tableau.b)
        self.nodes = tuple(sum(row) for row in tableau.a)
        self.rows = tuple(sparse(row[:-1]) for row in tableau.a)
        self.stiffly_accurate = tuple(tableau.a[-1]) == tuple(tableau.b)

    @property
    def error_order(self) -> int:
        return self.tableau.error_order or self.order

    def with_newton(self, newton: Newton) -> ImplicitRK:
        """The same method with other settings of its nonlinear solves."""
        return ImplicitRK(self.name, self.tableau, newton, fixed_by_default=self.fixed_by_default)

    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        before = term.calls
        systems = term.systems
        h = systems.spread((t1 - t0).to(term.real_dtype))
        times = [systems.spread(time) for time in term.stage_times(t0, t1, self.nodes)]
        if f0 is None:
            f0 = term.first_velocity(t0, t1, y0)
        guess = f0
        stages: list[Tensor] = []
        failed = torch.zeros(systems.count, dtype=torch.bool, device=y0.device)
        evaluations = torch.full_like(failed, term.calls - before, dtype=torch.int64)
        point = y0
        for time, row, full_row in zip(times, self.rows, self.tableau.a, strict=True):
            base = move(y0, h, row, stages) if row else y0
            weight = full_row[-1]
            if weight == 0:
                stage = f0 if not stages else term.velocity(time, base)
                evaluations = evaluations + (1 if stages else 0)
            else:
                stage, solved, needed = self._solve_stage(term, time, base, h * weight, guess)
                failed, evaluations = failed | ~solved, evaluations + needed
                point = torch.addcmul(base, stage, h * weight)
            stages.append(stage)
            guess = stage
        if self.stiffly_accurate:
            y1, f1 = point, stages[-1]
        else:
            y1, f1 = move(y0, h, sparse(self.tableau.b), stages), None
        error = None
        if self.tableau.error is not None:
            error = h * combine(sparse(self.tableau.error), stages)
        return Step(t0, t1, h, y0, y1, evaluations, error, f0, f1, tuple(stages), failed)

    def _solve_stage(
        self, term: Term, time: Tensor, base: Tensor, h: Tensor, guess: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The derivative k with `k = f(time, base + h k)`."""
        systems = term.systems

        def residual(stage: Tensor) -> Tensor:
            return term.velocity(time, torch.addcmul(base, stage, h)) - stage

        def frozen(stage: Tensor) -> Tensor:
            return term.velocity(time.detach(), torch.addcmul(base.detach(), stage, h.detach())) - stage

        # An error of k matters as h k against the state.
        with torch.no_grad():
            over_h = base.abs() / torch.where(h == 0, 1.0, h.abs())
            scale = systems.inner(over_h, over_h).sqrt()
            scale = torch.maximum(scale, systems.inner(guess, guess).sqrt())
        root = find_root(frozen, guess, scale, systems, self.newton)
        stage = root.x
        if torch.is_grad_enabled():
            stage = attach_root(residual, stage, systems, self.newton)
        return stage, root.converged | ~root.finite, root.evaluations


IMPLICIT_EULER = ImplicitTableau(
    # The explicit first stage is there for the error estimate, half the difference from the trapezoidal rule.
    a=((0.0,), (0.0, 1.0)), b=(0.0, 1.0), order=1, error=(-1 / 2, 1 / 2), error_order=2,
)  # fmt: skip
IMPLICIT_MIDPOINT = ImplicitTableau(a=((1 / 2,),), b=(1.0,), order=2)

_G = 0.4358665215084589994160194  # the root of x^3 - 3 x^2 + 3/2 x - 1/6 that makes the method L-stable
_KVAERNO3_LAST = ((6 * _G - 1) / (12 * _G), -1 / ((24 * _G - 12) * _G), (-6 * _G**2 + 6 * _G - 1) / (6 * _G - 3), _G)
_KVAERNO3_THIRD = ((-4 * _G**2 + 6 * _G - 1) / (4 * _G), (1 - 2 * _G) / (4 * _G), _G)
# A. Kvaerno, BIT 44 (2004), 489-502: ESDIRK3/2a, L-stable and stiffly accurate.
KVAERNO3 = ImplicitTableau(
    a=((0.0,), (_G, _G), _KVAERNO3_THIRD, _KVAERNO3_LAST),
    b=_KVAERNO3_LAST,
    order=3,
    error=tuple(b - e for b, e in zip(_KVAERNO3_LAST, (*_KVAERNO3_THIRD, 0.0), strict=True)),
)

register(ImplicitRK("implicit_euler", IMPLICIT_EULER, fixed_by_default=True))
register(ImplicitRK("implicit_midpoint", IMPLICIT_MIDPOINT))
register(ImplicitRK("kvaerno3", KVAERNO3))
