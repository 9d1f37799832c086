"""What `solve` returns."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .method.base import Method, Step
from .status import SolveError, Status, failed, solve_error
from .term import Term
from .typing import PerSystem, PerSystemInt

Y = TypeVar("Y", Tensor, tuple[Tensor, ...])


@dataclasses.dataclass(frozen=True)
class Dense:
    """The accepted steps, to look up the state at any time."""

    steps: tuple[Step, ...]
    accepted: tuple[Tensor, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Solution(Generic[Y]):
    """The result of :func:`solve`.

    Attributes:
        ts: The times of `ys`: `[T]`, or `[T, S]` for every accepted step of many systems, each at its own time.
        ys: The states at those times, with the time first (a tuple of such, for a state that is a tuple).
            A system that has ended stays where it ended: see `t1`.
        y1: The state that every system reached.
        t1: The time that every system reached, `[S]`.
        status: How each system ended, `[S]`; the codes are those of :class:`Status`.
        stats: Per system, `[S]`: `nfe` (evaluations of the field), `energy_evaluations` (of its energy, with or
            without gradient; from :func:`solve` only), `steps`, `accepted`, `rejected` and `energy_rejected` (tries
            that a dissipative method or a guard turned down because the energy would have risen).
        fraction: From :func:`take_steps`: the part of each step that was taken, `[steps, S]`; None from :func:`solve`.
    """

    ts: Tensor
    ys: Y
    y1: Y
    t1: PerSystem
    status: PerSystemInt
    stats: dict[str, PerSystemInt]
    _term: Term = dataclasses.field(repr=False)
    _method: Method = dataclasses.field(repr=False)
    _dt: Tensor = dataclasses.field(repr=False)
    _y1: Tensor = dataclasses.field(repr=False)
    _ys: Tensor = dataclasses.field(repr=False)
    _dense: Dense | None = dataclasses.field(default=None, repr=False)
    _energy: Tensor | None = dataclasses.field(default=None, repr=False)
    fraction: Tensor | None = dataclasses.field(default=None, repr=False)

    @property
    def success(self) -> bool:
        """Whether no system failed."""
        return not bool(failed(self.status).any())

    def status_of(self, system: int) -> Status:
        """The status of one system."""
        return Status(int(self.status[system]))

    def error(self) -> SolveError | None:
        """The error that `throw=True` raises, or None if no system failed."""
        if self.success:
            return None
        with torch.no_grad():
            f = self._term(self._inward(self.t1), self._y1)
            speed = self._term.systems.inner(f, f).sqrt()
        return solve_error(self.status, self.t1.detach(), self._dt.detach(), speed)

    @cached_property
    def energy(self) -> Tensor:
        """The field's energy at the saved times, `[T, S]`; for fields that have one.

        From :func:`take_steps`: at the start and after every step, `[steps + 1, S]`.
        """
        if self._energy is not None:
            return self._energy
        if not self._term.has_energy:
            raise AttributeError(f"the field {self._term.field!r} has no energy(t, y)")
        ts = self._inward(self.ts)
        count = self._term.systems.count
        rows = [self._term.energy(t.expand(count), y) for t, y in zip(ts, self._ys, strict=True)]
        return torch.stack(rows)

    def __call__(self, t: float | Tensor) -> Y:
        """The state at any time that was integrated over, from a solution made with `dense=True`.

        `t` is a number or a tensor of times of any shape; its dimensions come first in the result.
        """
        if self._dense is None:
            raise ValueError("this solution has no dense output: call solve(..., dense=True)")
        times = self._inward(torch.as_tensor(t, dtype=torch.float64, device=self._y1.device))
        states = [self._at(time) for time in times.reshape(-1)]
        packed = torch.stack(states).reshape(*times.shape, *self._y1.shape)
        packing = self._term.packing
        result: Any = packed if packing is None else packing.unpack(packed)
        return result

    def _at(self, t: Tensor) -> Tensor:
        assert self._dense is not None
        term = self._term
        low, high = self._inward(self._t_start), self._inward(self.t1)
        if bool(((t < low) | (t > high)).any()):
            raise ValueError(f"t={float(-t if term.backward else t):.6g} lies outside of what was integrated")
        result = self._dense.steps[0].y0 if self._dense.steps else self._y1
        for step, accepted in zip(self._dense.steps, self._dense.accepted, strict=True):
            here = accepted & (step.t0 < t) & (t <= step.t1)
            if bool(here.any()):
                theta = (t - step.t0) / torch.where(accepted, step.t1 - step.t0, 1.0)
                theta = torch.where(here, theta, 0.0)
                step = self._method.complete(term, step)
                y = self._method.interpolate(step, term.systems.spread(theta.to(term.real_dtype)))
                result = torch.where(term.systems.spread(here), y, result)
        return result

    @property
    def _t_start(self) -> Tensor:
        assert self._dense is not None
        return self._inward(self._dense.steps[0].t0) if self._dense.steps else self.t1

    def _inward(self, t: Tensor) -> Tensor:
        """Time as the solvers count it, always forward."""
        return -t if self._term.backward else t
