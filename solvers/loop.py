"""The loop over steps, as a pure function from state to state.

Every system has its own time, step size, acceptance and status. A system that has ended takes steps of size zero, so
it changes no more, and the others do not notice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .controllers import Controller, Memory
from .method.base import Method, Step
from .status import Status, failed, running
from .stopping import Stop
from .term import Term
from .typing import PerSystem, PerSystemInt

Event = Callable[..., Any]
Observer = Callable[[str, Tensor, Tensor, Tensor], None]

# A step that would leave less than this part of itself before the next given time goes there at once: ten steps of
# 0.1 reach 1.0 in ten steps, not in eleven.
SLIVER = 1e-6
_BISECTIONS = 60


@dataclasses.dataclass(frozen=True)
class LoopState:
    """Where every system is. Going on needs nothing else; all tensors, so it can be saved with `torch.save`."""

    t: PerSystem
    y: Tensor
    dt: PerSystem
    f: Tensor | None
    memory: Memory
    status: PerSystemInt
    nfe: PerSystemInt
    accepted: PerSystemInt
    rejected: PerSystemInt
    energy_rejected: PerSystemInt
    energy_evaluations: PerSystemInt
    start: tuple[Tensor, Tensor]  # first time and state: a place where the field of a failed system was finite
    side: Tensor | None = None  # on which side of its event every system started
    lost: bool = False  # whether any system has failed

    @property
    def done(self) -> bool:
        """Whether every system has ended."""
        return not bool((self.status == Status.RUNNING).any())


@dataclasses.dataclass(frozen=True)
class Emission:
    """A state that was asked for: the place among the save times, the systems concerned (None: all), the state."""

    place: int
    mask: Tensor | None
    y: Tensor


@dataclasses.dataclass(frozen=True, eq=False)
class Loop:
    """Everything about an integration that does not change from step to step."""

    term: Term
    method: Method
    controller: Controller
    end: Tensor  # [] float64
    stops: Tensor  # [K] float64, increasing, the last one is `end`: times that steps must end at
    jumps: Tensor | None = None  # those of `stops` at which the field jumps
    saves: Tensor | None = None  # [T] float64, increasing: times at which the state is wanted
    event: Event | None = None
    stop: Stop | None = None
    observer: Observer | None = None
    interpolation: str | None = None  # "linear" or "cubic" instead of the method's own way
    differentiate_event: bool = True  # whether gradients flow through the time of the event

    def start(self, t0: Tensor, y0: Tensor, dt0: Tensor | None) -> LoopState:
        """The state before the first step."""
        term, method = self.term, self.method
        count = term.systems.count
        t = t0.expand(count).contiguous()
        f, before = None, term.calls
        if dt0 is None and method.adaptive:
            f = term(t, y0)
        dt = self.controller.first_step(term, method, t.detach(), y0.detach(), f if f is None else f.detach(), dt0)
        dt = dt.to(t.dtype).expand(count).contiguous()
        zero = running(count, y0.device)
        status = torch.where(t.detach() >= self.end.detach(), int(Status.SUCCESS), zero)
        side = None
        if self.event is not None:
            side = torch.sign(self._event(t, y0)).detach()
            status = torch.where(side == 0, int(Status.EVENT), status)
        bad = ~finite(term, y0)
        status = torch.where(bad & (status == Status.RUNNING), int(Status.NON_FINITE), status)
        return LoopState(
            t=t,
            y=y0,
            dt=dt,
            f=f,
            memory=self.controller.remember(dt),
            status=status,
            nfe=zero + (term.calls - before),
            accepted=zero,
            rejected=zero,
            energy_rejected=zero,
            energy_evaluations=zero,
            start=(t.detach(), y0.detach()),
            side=side,
            lost=bool(failed(status).any()),
        )

    def step(self, state: LoopState) -> tuple[LoopState, Step, list[Emission]]:
        """Try one step of every running system."""
        term = self.term
        active = state.status == Status.RUNNING
        t0 = state.t
        target = self._next_stop(t0.detach())
        size = torch.where(active, state.dt, 0.0)
        room = target.detach() - t0.detach()
        landing = active & (size * (1 + SLIVER) >= room)
        t1 = torch.where(landing, target, t0 + size)
        resolved = t1.detach() > t0.detach()
        if self.observer is not None:
            self.observer("step", t0, state.y, t1 - t0)
        step, usable = self._attempt(state, t1, landing)
        if self.method.dissipative:
            # A method that chooses the time it reaches may pass a time that steps must end at: land there instead.
            over = usable & (step.t1.detach() > target.detach())
            if bool(over.any()):
                wasted, t1 = step, torch.where(over, target, t1)
                step, usable = self._attempt(state, t1, landing | over)
                step = step.after(wasted, over)
        decision = self.controller.decide(term, self.method, step, state.dt, usable, state.memory)
        accept = decision.accept & active & resolved
        if self.observer is not None:
            self.observer("accept_step" if bool(accept.any()) else "reject_step", t0, state.y, t1 - t0)

        everyone = bool(accept.all())
        t_new, y_new, f_new = step.t1, step.y1, step.f1
        status, nfe = state.status, state.nfe + (step.evaluations if everyone else step.evaluations * active)
        energies, energies_before = state.energy_evaluations + step.energies * active, term.energy_calls
        side = state.side
        # Evaluations beyond those of the step are counted for the systems that they were made for.
        before = term.calls
        if self.event is not None:
            step, fired = self._locate_event(step, accept, side)
            t_new, y_new = step.t1, step.y1
            f_new = None if bool(fired.any()) else f_new
            status = torch.where(fired, int(Status.EVENT), status)
            nfe, before = nfe + (term.calls - before) * fired, term.calls
            energies, energies_before = energies + (term.energy_calls - energies_before) * fired, term.energy_calls
        if self.stop is not None:
            still = self.stop.met(term, step) & accept & (status == Status.RUNNING)
            status = torch.where(still, int(Status.STOPPED), status)
            nfe, before = nfe + (term.calls - before) * accept, term.calls
            energies = energies + (term.energy_calls - energies_before) * accept
        if not everyone:
            spread = term.systems.spread(accept)
            t_new = torch.where(accept, t_new, t0)
            y_new = torch.where(spread, y_new, state.y)
            if f_new is not None:
                f_start = step.f0 if step.f0 is not None else state.f
                f_new = None if f_start is None else torch.where(spread, f_new, f_start)
        if self.jumps is not None and f_new is not None and bool(torch.isin(t_new.detach(), self.jumps).any()):
            f_new = None  # the derivative was taken before the jump

        status = torch.where(accept & (status == Status.RUNNING) & (t_new >= self.end), int(Status.SUCCESS), status)
        if not everyone:
            status = self._judge(status, active & ~accept, usable, resolved, step, decision.dt, t0.detach())
        emissions, inside = self._emit(step, t0.detach(), t_new.detach())
        if inside is not None:
            nfe = nfe + (term.calls - before) * inside
        energy_rejected = state.energy_rejected
        if step.energy_rejected is not None:
            energy_rejected = energy_rejected + step.energy_rejected * active
        dt = decision.dt.to(state.dt.dtype)
        new = LoopState(
            t=t_new,
            y=y_new,
            dt=dt if everyone else torch.where(active, dt, state.dt),
            f=f_new,
            memory=decision.memory,
            status=status,
            nfe=nfe,
            accepted=state.accepted + accept,
            rejected=state.rejected if everyone else state.rejected + (active & ~accept),
            energy_rejected=energy_rejected,
            energy_evaluations=energies,
            start=state.start,
            side=side,
            lost=state.lost or (not everyone and bool(failed(status).any())),
        )
        return new, step, emissions

    # -- parts of a step ----------------------------------------------------------------------------------------

    def _next_stop(self, t: Tensor) -> Tensor:
        if self.stops.numel() == 1:
            return self.stops.expand(t.shape)
        ahead = torch.searchsorted(self.stops.detach(), t, right=True).clamp(max=self.stops.numel() - 1)
        return self.stops[ahead]

    def _attempt(self, state: LoopState, t1: Tensor, landing: Tensor) -> tuple[Step, Tensor]:
        """Step to `t1`; also, which systems can use the result."""
        step = self._step_without(failed(state.status) if state.lost else None, state, t1, landing)
        # An error that is not finite betrays a stage that is not, which would be handed on as the next derivative.
        usable = finite(self.term, step.y1 if step.error is None else step.y1.detach() + step.error.detach())
        if step.failed is not None:
            usable = usable & ~step.failed
        if step.y1.requires_grad and not bool(usable.all()):
            again = self._step_without(~usable, state, t1, landing & usable)
            step = dataclasses.replace(again.after(step, torch.ones_like(usable)), failed=step.failed)
        return step, usable

    def _step_without(self, lost: Tensor | None, state: LoopState, t1: Tensor, landing: Tensor) -> Step:
        """A step of all systems but those that are `lost`.

        What they would have done is thrown away, but a NaN in it would still be in the graph, and times a zero
        cotangent it is a NaN in the gradient of parameters that all systems share. So they stay where they started.
        """
        if lost is None:
            return self.method.step(self.term, state.t, t1, state.y, state.f, landing)
        t_start, y_start = state.start
        spread = self.term.systems.spread(lost)
        y0, f0 = torch.where(spread, y_start, state.y), None if state.f is None else torch.where(spread, 0.0, state.f)
        t0, end = torch.where(lost, t_start, state.t), torch.where(lost, t_start, t1)
        step = self.method.step(self.term, t0, end, y0, f0, landing & ~lost)
        return dataclasses.replace(step, t0=state.t, t1=torch.where(lost, t1, step.t1))

    def _judge(
        self, status: Tensor, rejected: Tensor, usable: Tensor, resolved: Tensor, step: Step, dt: Tensor, t: Tensor
    ) -> Tensor:
        """The status of systems whose step was not accepted: try again, or give up."""
        unsolved = torch.zeros_like(usable) if step.failed is None else step.failed
        reason = torch.where(
            unsolved,
            int(Status.NOT_CONVERGED),
            torch.where(usable, int(Status.STEP_TOO_SMALL), int(Status.NON_FINITE)),
        )
        if self.method.dissipative:
            reason = torch.where(unsolved, int(Status.NOT_DISSIPATIVE), reason)
        # Ten units in the last place of the time, as elsewhere: a step of one or two may be rounded up again and again
        # to the size that was just rejected.
        give_up = rejected & (~resolved | (t + dt / 10 <= t))
        if not self.controller.retries:
            give_up = give_up | rejected
        else:
            give_up = give_up | (rejected & ~usable & (dt <= self.controller.smallest_step))
        return torch.where(give_up, reason, status)

    def _event(self, t: Tensor, y: Tensor) -> Tensor:
        assert self.event is not None
        term = self.term
        state: Any = y if term.packing is None else term.packing.unpack(y)
        value = self.event(term.time(t), state)
        if not torch.is_tensor(value) or value.numel() != term.systems.count:
            raise ValueError(f"event(t, y) must return one value for each of the {term.systems.count} systems")
        return value.reshape(term.systems.count)

    def _locate_event(self, step: Step, accept: Tensor, side: Tensor | None) -> tuple[Step, Tensor]:
        """End the step at the event for systems whose event function changed its sign in it."""
        assert side is not None
        term = self.term
        with torch.no_grad():
            value = self._event(step.t1, step.y1)
            fired = accept & (torch.sign(value) != side) & (value == value)
            if not bool(fired.any()):
                return step, fired
        step = self.method.complete(term, step, self.interpolation)
        with torch.no_grad():
            low, high = torch.zeros_like(step.t1), torch.ones_like(step.t1)
            for _ in range(_BISECTIONS):
                middle = (low + high) / 2
                t, y = self._inside(step, middle)
                before = torch.sign(self._event(t, y)) == side
                low, high = torch.where(before, middle, low), torch.where(before, high, middle)
        theta = torch.where(fired, high, 1.0)
        if not self.differentiate_event and (step.t0.requires_grad or step.t1.requires_grad):
            at = (step.t0 + theta * (step.t1 - step.t0)).detach()
            theta = (at - step.t0) / torch.where(fired, step.t1 - step.t0, 1.0)
        t, y = self._inside(step, theta)
        if self.differentiate_event and (y.requires_grad or t.requires_grad):
            # The implicit function theorem, as one Newton step whose value is zero: d theta = -dg / (dg/dtheta).
            with torch.enable_grad():
                moving = theta.detach().requires_grad_()
                value = self._event(*self._inside(step, moving))
                (slope,) = torch.autograd.grad(value.sum(), moving, retain_graph=True)
                value = self._event(t, y)
            slope = torch.where(fired & (slope != 0), slope, 1.0)
            theta = theta - torch.where(fired, value - value.detach(), 0.0) / slope
            t, y = self._inside(step, theta)
        spread = term.systems.spread(fired)
        t1, y1 = torch.where(fired, t, step.t1), torch.where(spread, y, step.y1)
        return dataclasses.replace(step, t1=t1, y1=y1), fired

    def _inside(self, step: Step, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Time and state at a fraction `theta`, `[S]`, of the step."""
        t = step.t0 + theta * (step.t1 - step.t0)
        if self.method.lands:  # no interpolant is good enough: step there
            landing = torch.ones_like(theta, dtype=torch.bool)
            inner = self.method.step(self.term, step.t0, t, step.y0, step.f0, landing)
            return inner.t1, inner.y1  # a dissipative method may have had to stop short of it
        fraction = self.term.systems.spread(theta.to(self.term.real_dtype))
        return t, self.method.interpolate(step, fraction, self.interpolation)

    def _emit(self, step: Step, before: Tensor, after: Tensor) -> tuple[list[Emission], Tensor | None]:
        """The states that were asked for at times in this step, and the systems that had to be interpolated."""
        if self.saves is None:
            return [], None
        inside = torch.zeros_like(before, dtype=torch.bool)
        saves, term = self.saves.detach(), self.term
        first = torch.searchsorted(saves, before, right=True)
        last = torch.searchsorted(saves, after, right=True)
        emissions, completed = [], None
        for shift in range(int((last - first).max())):
            place = first + shift
            wanted = place < last
            place = place.clamp(max=saves.numel() - 1)
            reached = step.t1.detach()
            at_end = saves[place] == reached
            if bool((at_end | ~wanted).all()):
                y = step.y1
            else:
                inside = inside | (wanted & ~at_end)
                length = step.t1 - step.t0
                theta = (self.saves[place] - step.t0) / torch.where(length == 0, 1.0, length)
                theta = torch.where(wanted, theta, 0.0)
                completed = self.method.complete(term, step, self.interpolation) if completed is None else completed
                fraction = term.systems.spread(theta.to(term.real_dtype))
                y = self.method.interpolate(completed, fraction, self.interpolation)
                y = torch.where(term.systems.spread(at_end), step.y1, y)
            everyone = bool(wanted.all())
            for k in sorted(set(place[wanted].tolist())):
                mask = None if everyone and term.systems.count == 1 else wanted & (place == k)
                emissions.append(Emission(k, mask, y))
        return emissions, inside


def finite(term: Term, y: Tensor) -> Tensor:
    """Which systems are finite in all their entries."""
    total = term.systems.total(y.detach() * 0)
    return total == 0
