"""Explicit Runge-Kutta methods: one engine, and a tableau for each method."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import cached_property
from typing import final

import torch
from torch import Tensor

from .. import interpolation
from ..term import Term
from .base import LockstepMethod, Step


@dataclasses.dataclass(frozen=True)
class Tableau:
    """The coefficients of an explicit Runge-Kutta method.

    Args:
        a: The rows below the first, each with the weights of the stages before it.
        b: The weights of the solution.
        order: The order of the solution.
        error: The weights of the local error estimate, solution minus embedded solution.
        middle: The weights of the state at the middle of the step, for a quartic interpolant.
        dense: For each stage the coefficients of theta, theta^2, ... of its weight inside the step.
    """

    a: Sequence[Sequence[float]]
    b: Sequence[float]
    order: int
    error: Sequence[float] | None = None
    middle: Sequence[float] | None = None
    dense: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        stages = len(self.a) + 1
        if any(len(row) != i + 1 for i, row in enumerate(self.a)):
            raise ValueError("Tableau: row i of `a` must have i + 1 entries (explicit methods only)")
        for name in ("b", "error", "middle", "dense"):
            value = getattr(self, name)
            if value is not None and len(value) != stages:
                raise ValueError(f"Tableau: `{name}` must have {stages} entries, one for each stage, got {len(value)}")
        if abs(sum(self.b) - 1) > 1e-12:
            raise ValueError(f"Tableau: the weights `b` must sum to 1, got {sum(self.b)}")

    @cached_property
    def c(self) -> tuple[float, ...]:
        nodes = [sum(row) for row in self.a]
        return (0.0, *(float(round(c)) if abs(c - round(c)) < 1e-14 else c for c in nodes))

    @cached_property
    def last_stage_is_end(self) -> bool:
        """First same as last: the last stage is the derivative at the new state."""
        return len(self.a) > 0 and self.b[-1] == 0 and tuple(self.b[:-1]) == tuple(self.a[-1])


Weights = tuple[tuple[int, float], ...]


def sparse(row: Sequence[float]) -> Weights:
    return tuple((j, float(weight)) for j, weight in enumerate(row) if weight != 0)


def combine(weights: Weights, stages: Sequence[Tensor]) -> Tensor:
    """The weighted sum of stages. Term by term, so that no entry's rounding depends on the tensor's shape."""
    (j, weight), *rest = weights
    total = stages[j] if weight == 1 else stages[j] * weight
    for j, weight in rest:
        total = torch.add(total, stages[j], alpha=weight)
    return total


def move(y: Tensor, h: Tensor | float, weights: Weights, stages: Sequence[Tensor]) -> Tensor:
    """`y` plus `h` times the weighted sum of stages."""
    if isinstance(h, float):
        for j, weight in weights:
            y = torch.add(y, stages[j], alpha=h * weight)
        return y
    return torch.addcmul(y, combine(weights, stages), h)


@final
class ExplicitRK(LockstepMethod):
    """The explicit Runge-Kutta method of a :class:`Tableau`, adaptive where the tableau has an error estimate.

    >>> from solvers import ExplicitRK, Tableau
    >>> ExplicitRK("heun", Tableau(a=((1.0,),), b=(0.5, 0.5), order=2))
    <method heun, order 2>
    """

    def __init__(self, name: str, tableau: Tableau) -> None:
        self.name = name
        self.tableau = tableau
        self.order = tableau.order
        self.stages = len(tableau.b) - tableau.last_stage_is_end
        self.adaptive = tableau.error is not None
        self.nodes = tableau.c
        self.rows = tuple(sparse(row) for row in tableau.a)
        self.weights = sparse(tableau.b)

    def advance(
        self, term: Term, times: list[Tensor], h: Tensor | float, y: Tensor, f0: Tensor | None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        stages = [term.velocity(times[0], y) if f0 is None else f0]
        point = y
        for i, row in enumerate(self.rows, 1):
            point = move(y, h, row, stages)
            stages.append(term.velocity(times[i], point))
        if self.tableau.last_stage_is_end:
            return point, stages[-1], tuple(stages)
        return move(y, h, self.weights, stages), None, tuple(stages)

    def error(self, h: Tensor, stages: tuple[Tensor, ...]) -> Tensor | None:
        if self.tableau.error is None:
            return None
        return h * combine(sparse(self.tableau.error), stages)

    def complete(self, term: Term, step: Step, kind: str | None = None) -> Step:
        own = self.tableau.dense is not None or (self.tableau.middle is not None and step.f1 is not None)
        return step if kind is None and own else super().complete(term, step, kind)

    def interpolate(self, step: Step, theta: Tensor, kind: str | None = None) -> Tensor:
        if kind is None and self.tableau.dense is not None:
            weights = interpolation.polynomial_weights(theta, self.tableau.dense)
            total = step.y0
            for weight, stage in zip(weights, step.stages, strict=True):
                total = torch.addcmul(total, step.h * weight, stage)
            return total
        if kind is None and self.tableau.middle is not None and step.f1 is not None:
            middle = move(step.y0, step.h, sparse(self.tableau.middle), step.stages)
            return interpolation.quartic(theta, step.y0, step.y1, middle, step.h * step.stages[0], step.h * step.f1)
        return super().interpolate(step, theta, kind)
