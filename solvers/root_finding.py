"""Nonlinear equations, one for each system, solved together without ever forming a matrix.

Newton's method with a line search, its linear equations by GMRES; and the gradient of a root by the implicit function
theorem. Every system converges, stops and fails on its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .autograd import fresh, recording
from .systems import Systems
from .typing import PerSystemBool, PerSystemInt

Operator = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Newton:
    """Settings of the nonlinear solves.

    Args:
        max_iterations: How many Newton iterations are made at the most.
        tolerance: The size of the last update, relative to the solution; by default a power of the machine epsilon
            that leaves a few digits for rounding.
        krylov: How many Krylov vectors are kept for the linear equations before they restart.
        restarts: How often they restart at the most.
        shortenings: How often an update is shortened when it does not lower the residual.
    """

    max_iterations: int = 20
    tolerance: float | None = None
    krylov: int = 30
    restarts: int = 3
    shortenings: int = 4

    def tolerance_for(self, dtype: torch.dtype) -> float:
        return torch.finfo(dtype).eps ** 0.75 if self.tolerance is None else self.tolerance


@dataclasses.dataclass(frozen=True)
class Root:
    """The solution of `residual(x) = 0`, which systems converged, and the evaluations that each one needed.

    Where the residual was not finite to begin with, neither is `x`.
    """

    x: Tensor
    converged: PerSystemBool
    finite: PerSystemBool
    evaluations: PerSystemInt


def find_root(residual: Operator, x0: Tensor, scale: Tensor, systems: Systems, newton: Newton) -> Root:
    """Solve `residual(x) = 0` for every system, from `x0`; `scale`, `[S]`, is the size that counts as large for x.

    Nothing is recorded for gradients: see :func:`attach_root`.
    """
    tolerance = newton.tolerance_for(scale.dtype)
    with torch.no_grad():
        x = x0.detach()
        value, jacobian = _linearize(residual, x)
        size = _norm(systems, value)
        converged = size == 0
        alive = torch.isfinite(size) & ~converged
        evaluations = torch.ones_like(alive, dtype=torch.int64)
        for _ in range(newton.max_iterations):
            if not bool(alive.any()):
                break
            # Loose linear solves make Newton converge linearly, but steeply; tight ones cost more than they save.
            rhs = torch.where(systems.spread(alive), -value, 0.0)
            update, _ = gmres(jacobian, rhs, systems, 1e-4, newton.krylov, 1)
            # An update that is not finite must not reach the others through 0 * inf.
            update = update.nan_to_num(0.0, 0.0, 0.0)
            damping = torch.where(alive, 1.0, 0.0).to(size.dtype)
            step = _norm(systems, update)
            limit = tolerance * torch.maximum(scale, _norm(systems, x))
            searching = alive
            for _ in range(newton.shortenings + 1):
                trial = x + systems.spread(damping) * update
                trial_value, trial_jacobian = _linearize(residual, trial)
                evaluations = evaluations + searching
                trial_size = _norm(systems, trial_value)
                # At the level of rounding the residual need not fall any more.
                better = (trial_size < size) | ((step * damping <= limit) & torch.isfinite(trial_size))
                searching = searching & ~better
                if not bool(searching.any()):
                    break
                # The minimum of the parabola through the squared residuals and the slope that Newton promises.
                ratio = (trial_size / size) ** 2
                shrink = damping / (ratio - 1 + 2 * damping)
                shrink = torch.where(torch.isfinite(shrink), shrink, 0.1).clamp(0.1, 0.5)
                damping = torch.where(searching, damping * shrink, damping)
            moved = alive & ~searching
            x = torch.where(systems.spread(moved), trial, x)
            small = (step * damping <= limit) | (trial_size == 0)
            converged = converged | (moved & small)
            # A system whose line search failed is as good as it will get.
            alive = moved & ~small
            value = torch.where(systems.spread(moved), trial_value, value)
            size = torch.where(moved, trial_size, size)
            jacobian = trial_jacobian
        finite = torch.isfinite(size)
        x = torch.where(systems.spread(finite), x, float("nan"))
    return Root(x, converged, finite, evaluations)


def attach_root(residual: Operator, root: Tensor, systems: Systems, newton: Newton) -> Tensor:
    """The root again, with first and second derivatives in everything that `residual` depends on.

    A Newton step with the Jacobian frozen at the root changes nothing there, and has the first derivative of the root
    by the implicit function theorem; a second one from where the first one leads has the second derivative as well.
    """
    value = residual(root.detach())
    if not value.requires_grad:
        return root
    jacobian = _Jacobian(residual, root.detach(), systems, newton)
    once: Tensor = root.detach() - _FrozenSolve.apply(value, jacobian)
    twice: Tensor = once - _FrozenSolve.apply(residual(once), jacobian)
    return twice


class _Jacobian:
    """The derivative of a residual at its root, as something to solve linear equations with."""

    def __init__(self, residual: Operator, root: Tensor, systems: Systems, newton: Newton) -> None:
        self.residual, self.root, self.systems, self.newton = residual, root, systems, newton
        self._graph: tuple[Tensor, Tensor] | None = None
        self._largest: Tensor | None = None

    def _linearized(self) -> tuple[Tensor, Tensor]:
        if self._graph is None:
            with recording():
                point = fresh(self.root)
                self._graph = self.residual(point), point
        return self._graph

    def solve_transposed(self, rhs: Tensor) -> Tensor:
        value, point = self._linearized()

        def transposed(u: Tensor) -> Tensor:
            with recording():
                (image,) = torch.autograd.grad(value, point, u, retain_graph=True)
            return image

        # First derivatives reach the first of the two Newton steps with a cotangent of zero, up to the tolerance of
        # the solve for the second one: nothing to solve for, seen from there.
        size = _norm(self.systems, rhs)
        self._largest = size if self._largest is None else torch.maximum(size, self._largest)
        return self._solve(transposed, rhs, self._largest)

    def solve(self, rhs: Tensor) -> Tensor:
        return self._solve(_directional(*self._linearized()), rhs, None)

    def _solve(self, operator: Operator, rhs: Tensor, scale: Tensor | None) -> Tensor:
        tolerance, newton = self.newton.tolerance_for(self.root.dtype.to_real()), self.newton
        solution, _ = gmres(operator, rhs.detach(), self.systems, tolerance, newton.krylov, newton.restarts, scale)
        return solution


class _FrozenSolve(torch.autograd.Function):
    """J^-1 applied to a residual that is zero."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, jacobian: _Jacobian) -> Tensor:
        ctx.jacobian = jacobian
        return torch.zeros_like(value)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return _FrozenSolveTransposed.apply(cotangents[0], ctx.jacobian), None


class _FrozenSolveTransposed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rhs: Tensor, jacobian: _Jacobian) -> Tensor:
        ctx.jacobian = jacobian
        return jacobian.solve_transposed(rhs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.jacobian.solve(cotangents[0]), None


def _linearize(residual: Operator, x: Tensor) -> tuple[Tensor, Operator]:
    """The residual at x, and its derivative there as an operator on directions."""
    with recording():
        point = fresh(x)
        value = residual(point)
        return value.detach(), _directional(value, point)


def _directional(value: Tensor, point: Tensor) -> Operator:
    """Directional derivatives by reverse mode only: J^T u is linear in u, and its derivative in u is J.

    Forward mode would do it in one pass, but fields are gradients themselves more often than not, and by far not
    every operator of torch can be differentiated forward over reverse.
    """
    images: list[tuple[Tensor, Tensor]] = []

    def apply(direction: Tensor) -> Tensor:
        if not images:  # most residuals of a line search are never differentiated
            with recording():
                dummy = torch.zeros_like(value, requires_grad=True)
                (image,) = torch.autograd.grad(value, point, dummy, create_graph=True)
            images.append((dummy, image))
        dummy, image = images[0]
        (result,) = torch.autograd.grad(image, dummy, direction, retain_graph=True)
        return result.detach()

    return apply


@torch.no_grad()
def gmres(
    operator: Operator,
    rhs: Tensor,
    systems: Systems,
    tolerance: float,
    krylov: int,
    restarts: int,
    scale: Tensor | None = None,
) -> tuple[Tensor, PerSystemBool]:
    """Solve `operator(x) = rhs` for every system, to a residual relative to `scale`, by default the norm of `rhs`.

    Also, which systems got there.

    A system that has converged takes no further part: its columns become those of the identity, so that it ends with
    the very numbers that it would have had alone.
    """
    x = torch.zeros_like(rhs)
    residual = rhs
    norm = _norm(systems, rhs)
    goal = tolerance * (norm if scale is None else scale)
    active = torch.isfinite(norm) & (norm > goal)
    converged = torch.isfinite(norm) & ~active
    for _ in range(restarts):
        if not bool(active.any()):
            break
        correction, finished = _arnoldi(operator, residual, norm, active, goal, systems, krylov)
        x = x + correction
        converged = converged | finished
        active = active & ~finished
        if bool(active.any()):
            residual = torch.where(systems.spread(active), rhs - operator(x), 0.0)
            norm = _norm(systems, residual)
            active = active & torch.isfinite(norm)
    return x, converged


_LEFT = 16  # roundings that may be left of a vector that is orthogonalised


def _arnoldi(
    operator: Operator,
    residual: Tensor,
    norm: Tensor,
    active: Tensor,
    goal: Tensor,
    systems: Systems,
    krylov: int,
) -> tuple[Tensor, Tensor]:
    """One cycle of GMRES: the correction, and the systems that reached their goal."""
    finished = torch.zeros_like(active)
    basis = [residual / systems.spread(torch.where(active, norm, 1.0))]
    projected = [torch.where(active, norm, 0.0)]  # the right-hand side in the basis, rotated as we go
    columns: list[list[Tensor]] = []
    rotations: list[tuple[Tensor, Tensor]] = []
    for j in range(krylov):
        vector = operator(basis[j])
        size = _norm(systems, vector)
        column = []
        for known in basis:
            overlap = systems.inner(vector, known)
            vector = vector - systems.spread(overlap) * known
            column.append(overlap)
        below = _norm(systems, vector)
        for i, (cos, sin) in enumerate(rotations):
            column[i], column[i + 1] = cos * column[i] + sin * column[i + 1], cos * column[i + 1] - sin * column[i]
        radius = torch.sqrt(column[j] ** 2 + below**2)
        # Where nothing but rounding is left, the operator is singular on the basis, and no step is to be trusted.
        live = active & torch.isfinite(radius) & (radius > _LEFT * torch.finfo(radius.dtype).eps * size)
        cos = torch.where(live, column[j] / torch.where(live, radius, 1.0), 1.0)
        sin = torch.where(live, below / torch.where(live, radius, 1.0), 0.0)
        rotations.append((cos, sin))
        columns.append([torch.where(live, entry, 0.0) for entry in column[:j]] + [torch.where(live, radius, 1.0)])
        last = torch.where(live, projected[j], 0.0)
        projected[j] = cos * last
        projected.append(-sin * last)
        reached = live & (projected[j + 1].abs() <= goal)
        finished = finished | reached
        active = live & ~reached
        if not bool(active.any()):
            break
        basis.append(vector / systems.spread(torch.where(active & (below > 0), below, 1.0)))
    weights: list[Tensor] = [projected[0]] * len(columns)
    for i in reversed(range(len(columns))):
        weight = projected[i]
        for j in range(i + 1, len(columns)):
            weight = weight - columns[j][i] * weights[j]
        weights[i] = weight / columns[i][i]
    correction = torch.zeros_like(residual)
    for weight, known in zip(weights, basis, strict=False):
        correction = correction + systems.spread(weight) * known
    return correction, finished


def _norm(systems: Systems, x: Tensor) -> Tensor:
    return systems.inner(x, x).sqrt()
