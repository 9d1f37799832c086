"""Conditions that end the integration of a system before the end of the time span."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from .method.base import Step
from .term import Term
from .typing import PerSystemBool


class Stop(ABC):
    """Looked at after every accepted step; a system for which it holds stops there with ``Status.STOPPED``."""

    def check(self, term: Term) -> None:  # noqa: B027  (most conditions need nothing of the field)
        """Refuse fields that the condition cannot judge."""

    @abstractmethod
    def met(self, term: Term, step: Step) -> PerSystemBool:
        """Which systems may stop after this step."""


@final
@dataclasses.dataclass(frozen=True)
class SteadyState(Stop):
    """Stops a system where it hardly moves: `rms(f) <= atol + rtol * rms(y)`.

    >>> import torch
    >>> from solvers import SteadyState, solve
    >>> solution = solve(lambda t, y: -y, torch.ones(1), 0.0, 1e3, stop=SteadyState(atol=1e-3))
    >>> solution.status_of(0).name, bool(solution.t1 < 10)
    ('STOPPED', True)
    """

    rtol: float = 0.0
    atol: float = 1e-6

    @torch.no_grad()
    def met(self, term: Term, step: Step) -> PerSystemBool:
        f1 = term(step.t1, step.y1) if step.f1 is None else step.f1
        return _rms(term, f1) <= self.atol + self.rtol * _rms(term, step.y1)


@final
@dataclasses.dataclass(frozen=True)
class EnergyPlateau(Stop):
    """Stops a system whose energy hardly falls: by at most `atol + rtol * |V|` per unit of time.

    Measured per unit of time, the condition does not depend on the step size.
    """

    rtol: float = 1e-6
    atol: float = 0.0

    def check(self, term: Term) -> None:
        if not term.has_energy:
            raise TypeError(f"stop=EnergyPlateau() needs a field with energy(t, y); {term.field!r} has none")

    @torch.no_grad()
    def met(self, term: Term, step: Step) -> PerSystemBool:
        before, after = term.energy(step.t0, step.y0), term.energy(step.t1, step.y1)
        return (before - after).abs() <= (self.atol + self.rtol * after.abs()) * (step.t1 - step.t0)


def _rms(term: Term, x: Tensor) -> Tensor:
    return (term.systems.inner(x, x) / term.sizes).sqrt()
