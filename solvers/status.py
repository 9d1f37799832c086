"""How the integration of a system ended, and what to do about it."""

from __future__ import annotations

import enum

import torch
from torch import Tensor

from .typing import PerSystemInt


class Status(enum.IntEnum):
    """The state of one system's integration. Codes up to ``STOPPED`` are good, the rest are failures.

    >>> Status.MAX_STEPS.failed
    True
    >>> Status.MAX_STEPS.advice
    'raise max_steps, loosen the tolerances, use an implicit or dissipative method, or scale the field'
    """

    RUNNING = 0
    SUCCESS = 1
    EVENT = 2
    STOPPED = 3
    MAX_STEPS = 4
    STEP_TOO_SMALL = 5
    NON_FINITE = 6
    NOT_CONVERGED = 7
    NOT_DISSIPATIVE = 8

    @property
    def failed(self) -> bool:
        return self > Status.STOPPED

    @property
    def summary(self) -> str:
        return _SUMMARY[self]

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_SUMMARY = {
    Status.RUNNING: "still running",
    Status.SUCCESS: "reached the end",
    Status.EVENT: "stopped by its event",
    Status.STOPPED: "stopped by the stop condition",
    Status.MAX_STEPS: "step limit reached",
    Status.STEP_TOO_SMALL: "the step size fell below what the time can resolve (or below min_step)",
    Status.NON_FINITE: "the field or the state became NaN or infinite",
    Status.NOT_CONVERGED: "the nonlinear solve of an implicit step did not converge",
    Status.NOT_DISSIPATIVE: "the energy is NaN or infinite, so no step can be shown to lower it",
}

_ADVICE = {
    Status.RUNNING: "advance the stepper further",
    Status.SUCCESS: "nothing to do",
    Status.EVENT: "nothing to do",
    Status.STOPPED: "nothing to do",
    Status.MAX_STEPS: (
        "raise max_steps, loosen the tolerances, use an implicit or dissipative method, or scale the field"
    ),
    Status.STEP_TOO_SMALL: (
        "loosen rtol and atol, use float64, use an implicit method if the system is stiff, "
        "or name discontinuities of the field in jump_t"
    ),
    Status.NON_FINITE: (
        "check whether the field is defined near this state and time, end the system there with an event, "
        "or take a smaller step (adaptive and dissipative methods find it)"
    ),
    Status.NOT_CONVERGED: "take a smaller step, use an adaptive implicit method, or allow more Newton iterations",
    Status.NOT_DISSIPATIVE: "check the energy at this state; its domain may not contain it",
}


class SolveError(RuntimeError):
    """One or more systems failed. `status`, `t` and `dt` hold the details per system."""

    def __init__(self, message: str, status: PerSystemInt, t: Tensor, dt: Tensor) -> None:
        super().__init__(message)
        self.status = status
        self.t = t
        self.dt = dt


def failed(status: Tensor) -> Tensor:
    """Which systems have failed, as a mask."""
    return status > int(Status.STOPPED)


def solve_error(status: Tensor, t: Tensor, dt: Tensor, speed: Tensor) -> SolveError:
    """The error for the systems that failed: one line for each of the first few, with place, step and advice."""
    where = failed(status).nonzero().flatten().tolist()
    lines = []
    for i in where[:5]:
        code = Status(int(status[i]))
        place = f"at t={float(t[i]):.6g}, dt={float(dt[i]):.3g}, |f|={float(speed[i]):.3g}"
        lines.append(f"{code.summary} in system {i} {place}: {code.advice}")
    if len(where) > 5:
        lines.append(f"... and {len(where) - 5} more systems")
    return SolveError("\n".join(lines), status, t, dt)


def running(count: int, device: torch.device) -> PerSystemInt:
    """A fresh status vector."""
    return torch.zeros(count, dtype=torch.int64, device=device)
