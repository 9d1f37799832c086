"""Step-size controllers: accept or reject, and the next step size, for each system on its own."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from .method.base import Method, Step
from .term import Term
from .typing import PerSystem, PerSystemBool

Memory = tuple[Tensor, ...]
Norm = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Which systems accept their step, the step size that each proposes next, and what the controller remembers."""

    accept: PerSystemBool
    dt: PerSystem
    memory: Memory


class Controller(ABC):
    """Chooses step sizes. Controllers are immutable; what they remember is handed to them."""

    @abstractmethod
    def first_step(
        self, term: Term, method: Method, t0: Tensor, y0: Tensor, f0: Tensor | None, dt0: Tensor | None
    ) -> Tensor:
        """The first step size of every system, `[S]`."""

    @abstractmethod
    def remember(self, dt: Tensor) -> Memory:
        """The memory before the first step, of size `dt`."""

    @abstractmethod
    def decide(
        self, term: Term, method: Method, step: Step, proposal: Tensor, usable: Tensor, memory: Memory
    ) -> Decision:
        """Judge a step.

        `usable` is false for systems whose step is not finite or was not solved; `proposal` is the step size that was
        wanted, of which the step may have taken less to end at a given time.
        """

    @property
    def retries(self) -> bool:
        """Whether a step that cannot be used is tried again with a smaller size."""
        return True

    @property
    def smallest_step(self) -> float:
        """The size below which no step is tried."""
        return 0.0


@final
class Fixed(Controller):
    """The same step size throughout; every usable step is accepted.

    Dissipative methods may take less of it; they never take more.
    """

    @property
    def retries(self) -> bool:
        return False

    def first_step(
        self, term: Term, method: Method, t0: Tensor, y0: Tensor, f0: Tensor | None, dt0: Tensor | None
    ) -> Tensor:
        if dt0 is None:
            raise ValueError(f"method {method.name!r} takes steps of a fixed size: give dt0 (in odeint: step_size)")
        return dt0

    def remember(self, dt: Tensor) -> Memory:
        return (dt,)

    def decide(
        self, term: Term, method: Method, step: Step, proposal: Tensor, usable: Tensor, memory: Memory
    ) -> Decision:
        if step.energy_rejected is None:
            return Decision(usable, proposal, memory)
        # Where a dissipative method had to shorten its step, it would have to do so again: start near what it took,
        # and return to the given size in steps of two. Not too near: what is a small part of a step is for the method
        # to say, and it knows only the size that it is asked for.
        (given,) = memory
        taken = torch.where(step.energy_rejected > 0, (step.t1 - step.t0).detach(), proposal)
        return Decision(usable, torch.maximum(torch.minimum(2 * taken, given), given / 32), memory)

    def __repr__(self) -> str:
        return "Fixed()"


@final
@dataclasses.dataclass(frozen=True, eq=False)
class PID(Controller):
    r"""Keeps each system's local error estimate near its tolerance.

    With the error :math:`e_n` of the n-th step, measured in units of `atol + rtol * max(|y_0|, |y_1|)`, and a method
    of order k, the step size changes by the factor

    .. math:: s\, e_n^{-(p + i + d)/k}\, e_{n-1}^{(p + 2d)/k}\, e_{n-2}^{-d/k},

    kept between `dfactor` and `ifactor`, and never below 1 after an accepted step.
    The default is an I controller; PI is, for instance, `pcoeff=0.4, icoeff=0.3`.

    Args:
        rtol: Relative tolerance, a number or a tensor that broadcasts against the state.
        atol: Absolute tolerance, likewise.
        pcoeff: Coefficient p.
        icoeff: Coefficient i.
        dcoeff: Coefficient d.
        safety: The factor s.
        ifactor: The largest growth of a step.
        dfactor: The strongest reduction of a step.
        min_step: A step of this size is accepted whatever its error.
        max_step: No step is larger than this.
        norm: Maps the scaled error, shaped like the state, to one value per system; root mean square by default.

    >>> PID(rtol=1e-3, atol=1e-6).icoeff
    1.0
    """

    rtol: float | Tensor = 1e-5
    atol: float | Tensor = 1e-7
    pcoeff: float = 0.0
    icoeff: float = 1.0
    dcoeff: float = 0.0
    safety: float = 0.9
    ifactor: float = 10.0
    dfactor: float = 0.2
    min_step: float = 0.0
    max_step: float = float("inf")
    norm: Norm | None = None

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            check_tolerance(name, value)
        if not torch.is_tensor(self.rtol) and not torch.is_tensor(self.atol) and self.rtol == 0 and self.atol == 0:
            raise ValueError("rtol and atol are both 0: no step could ever be accepted")
        if not 0 < self.dfactor < 1 < self.ifactor:
            got = f"dfactor={self.dfactor}, ifactor={self.ifactor}"
            raise ValueError(f"the factors must satisfy 0 < dfactor < 1 < ifactor, got {got}")
        if not 0 < self.safety <= 1:
            raise ValueError(f"safety must lie in (0, 1], got {self.safety}")
        if not 0 <= self.min_step <= self.max_step:
            got = f"min_step={self.min_step}, max_step={self.max_step}"
            raise ValueError(f"the steps must satisfy 0 <= min_step <= max_step, got {got}")

    @property
    def smallest_step(self) -> float:
        return self.min_step

    def first_step(
        self, term: Term, method: Method, t0: Tensor, y0: Tensor, f0: Tensor | None, dt0: Tensor | None
    ) -> Tensor:
        if dt0 is None:
            assert f0 is not None
            dt0 = self._guess_first_step(term, method, t0, y0, f0)
        return dt0.clamp(self.min_step, self.max_step)

    def remember(self, dt: Tensor) -> Memory:
        return (torch.ones_like(dt), torch.ones_like(dt))

    @torch.no_grad()
    def decide(
        self, term: Term, method: Method, step: Step, proposal: Tensor, usable: Tensor, memory: Memory
    ) -> Decision:
        assert step.error is not None
        size = (step.t1 - step.t0).detach()
        ratio = self.error_ratio(term, step.error.detach(), step.y0.detach(), step.y1.detach())
        usable = usable & (ratio == ratio)  # NaN is not equal to itself
        fits = usable & (ratio <= 1)
        k = method.error_order
        # exp and log rather than pow: torch's pow rounds differently at the end of an array, so that a system's step
        # sizes would depend on its place in the batch.
        log = ratio.log()
        integral = torch.exp(log * (-self.icoeff / k)).mul_(self.safety)
        grown = integral
        if self.pcoeff or self.dcoeff:
            last, before = memory
            exponent = -(self.pcoeff + self.dcoeff) / k * log
            exponent = exponent + (self.pcoeff + 2 * self.dcoeff) / k * last.log() - self.dcoeff / k * before.log()
            grown = integral * torch.exp(exponent)
            floor = ratio.clamp(min=1e-10)  # an error of exactly zero would be remembered as an infinite factor
            memory = (torch.where(fits, floor, last), torch.where(fits, last, before))
        factor = torch.where(fits, grown.clamp(1.0, self.ifactor), integral.clamp(self.dfactor, 1.0))
        factor = torch.where(usable, factor, self.dfactor)
        accept = fits
        if self.min_step > 0:
            # The size is a difference of times, and so not exactly what was asked for.
            accept = accept | (usable & (size <= self.min_step * (1 + 1e-9)))
        # A step cut short to end at a given time says nothing against the size that was proposed before.
        dt = torch.where(fits, torch.maximum(size * factor, proposal), size * factor)
        dt = dt.clamp(self.min_step, self.max_step)
        return Decision(accept, dt, memory)

    def error_ratio(self, term: Term, error: Tensor, y0: Tensor, y1: Tensor) -> Tensor:
        """The error of each system in units of its tolerance, in float64."""
        return self._measure(term, error / (self.atol + self.rtol * torch.maximum(y0.abs(), y1.abs())))

    def _measure(self, term: Term, scaled: Tensor) -> Tensor:
        if self.norm is not None:
            value = torch.as_tensor(self.norm(scaled), device=term.device)
            return value.abs().reshape(term.systems.count).double()
        return (term.systems.inner(scaled, scaled) / term.sizes).sqrt().double()

    @torch.no_grad()
    def _guess_first_step(self, term: Term, method: Method, t0: Tensor, y0: Tensor, f0: Tensor) -> Tensor:
        """Hairer, Norsett and Wanner, Solving Ordinary Differential Equations I, section II.4."""
        scale = self.atol + y0.abs() * self.rtol
        d0, d1 = self._measure(term, y0 / scale), self._measure(term, f0 / scale)
        tiny = (d0 < 1e-5) | (d1 < 1e-5)
        h0 = torch.where(tiny, 1e-6, 0.01 * d0 / torch.where(tiny, 1.0, d1))
        h = term.systems.spread(h0.to(term.real_dtype))
        f1 = term(t0 + h0, y0 + h * f0)
        d2 = self._measure(term, (f1 - f0) / scale) / h0
        steepest = torch.maximum(d1, d2)
        flat = steepest <= 1e-15
        curved = torch.exp(torch.log(0.01 / torch.where(flat, 1.0, steepest)) / method.error_order)
        h1 = torch.where(flat, (h0 * 1e-3).clamp(min=1e-6), curved)
        return torch.minimum(100 * h0, h1).nan_to_num(nan=1e-6)


def check_tolerance(name: str, value: Any) -> None:
    if torch.is_tensor(value):
        if value.requires_grad:
            raise ValueError(f"{name} cannot require gradient")
        bad = bool((~(value >= 0)).any())
    else:
        bad = not value >= 0
    if bad:
        raise ValueError(f"{name} must not be negative (or NaN), got {value}")


def largest_rms(parts: tuple[Tensor, ...]) -> Tensor:
    """A norm of a tuple state: the largest root mean square of its parts."""
    return torch.stack([part.abs().square().mean().sqrt() for part in parts if part.numel()]).amax()
