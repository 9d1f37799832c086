"""`solve`: from a field, a state and a time span to a :class:`Solution`."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ._typing import Field
from .adjoint import Adjoint, Backsolve, Direct
from .controllers import PID, Controller, Fixed
from .lockstep import Grid, March, march, uniform_times
from .loop import SLIVER, Emission, Event, Loop, LoopState, Observer, finite
from .method.base import LockstepMethod, Method, Step, find_method
from .progress import Progress, progress_bar
from .solution import Dense, Solution, Y
from .status import Status
from .stopping import Stop
from .systems import Systems
from .term import Packing, Term, outside_inference_mode, systems_of

_MAX_STEPS = 100_000
_STEPS_BETWEEN_REPORTS = 16


@outside_inference_mode
def solve(
    field: Field,
    y0: Y,
    t0: float | Tensor,
    t1: float | Tensor,
    *,
    method: str | Method = "dopri5",
    dt0: float | Tensor | None = None,
    controller: Controller | None = None,
    saveat: Tensor | Sequence[float] | str | None = None,
    systems: Systems | None = None,
    args: Any = None,
    adjoint: Adjoint | None = None,
    event: Event | None = None,
    stop: Stop | None = None,
    step_t: Tensor | Sequence[float] | None = None,
    jump_t: Tensor | Sequence[float] | None = None,
    dense: bool = False,
    max_steps: int | None = None,
    throw: bool = True,
    progress: bool | Progress = False,
) -> Solution[Y]:
    """Integrate `dy/dt = field(t, y)` from `t0` to `t1`, every system on its own.

    Args:
        field: Called as `field(t, y)`, or `field(t, y, args)` where `args` is given. With many systems, `t` has a
            value for every system, in a shape that broadcasts against the state; with one system it is a scalar.
        y0: The state at `t0`: a tensor, real or complex, or a tuple of tensors.
        t0: Start of the time span.
        t1: End of the time span; it may lie before `t0`.
        method: A name from :func:`methods`, or a method object.
        dt0: The first step size, or the only one for methods of a fixed step size.
        controller: How step sizes are chosen: :class:`PID` for adaptive methods, :class:`Fixed` for the rest.
        saveat: None keeps the state at the end; a tensor or list keeps it at those times; "steps" after every
            accepted step, the start included.
        systems: Which entries are independent systems: by default `field.systems` where there is one, else the whole
            state is one system.
        args: Passed on to the field as its third argument.
        adjoint: How gradients flow back: :class:`Direct` (default), :class:`Checkpointed` or :class:`Backsolve`.
        event: `event(t, y)` gives a value per system; a system ends where its value changes sign.
        stop: A condition that ends a system early, as :class:`SteadyState` or :class:`EnergyPlateau`.
        step_t: Times at which steps have to end.
        jump_t: Times at which the field jumps; steps end there and start anew.
        dense: Keep what is needed to call the solution at any time.
        max_steps: Limit on the number of steps, 100 000 by default for adaptive step sizes, none for fixed ones.
        throw: Raise :class:`SolveError` if a system failed; otherwise its status says so.
        progress: Show a progress bar, or call a function with the fraction done.

    Returns:
        The states asked for, with the status and the statistics of every system.

    >>> import torch
    >>> from solvers import Rows, solve
    >>> solution = solve(lambda t, y: -y, torch.ones(3, 2), 0.0, 1.0, systems=Rows())
    >>> solution.y1[0], solution.stats["accepted"].shape
    (tensor([0.3679, 0.3679]), torch.Size([3]))
    """
    problem = state_problem(
        field, y0, t0, t1, method=method, dt0=dt0, controller=controller, saveat=saveat, systems=systems, args=args,
        adjoint=adjoint, event=event, stop=stop, step_t=step_t, jump_t=jump_t, dense=dense, max_steps=max_steps,
        progress=progress,
    )  # fmt: skip
    if isinstance(problem.adjoint, Backsolve):
        from .backsolve import solve_backsolve

        solution = solve_backsolve(problem, problem.adjoint)
    else:
        solution = problem.run()
    if throw and not torch.compiler.is_compiling():
        error = solution.error()
        if error is not None:
            raise error
    return solution


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """An integration that has been checked and brought to one form: one tensor, time running forward."""

    term: Term
    method: Method
    controller: Controller
    adjoint: Adjoint
    y0: Tensor
    t0: Tensor
    t1: Tensor
    dt0: Tensor | None
    saves: Tensor | None = None
    every_step: bool = False
    stops: Tensor | None = None
    jumps: Tensor | None = None
    event: Event | None = None
    stop: Stop | None = None
    dense: bool = False
    max_steps: int | None = None
    progress: Progress | None = None
    observer: Observer | None = None
    times: list[float] | Tensor | None = None  # the step grid, where it is known beforehand
    interpolation: str | None = None
    differentiate_event: bool = True

    def run(self) -> Solution[Any]:
        grid = self._grid()
        if grid is not None:
            return run_on_grid(self, grid)
        loop = self.loop()
        state = loop.start(self.t0, self.y0, self.dt0)
        record = _Record(self)
        open_ended = self.controller.retries or self.method.dissipative or self.event is not None
        limit = self.max_steps if self.max_steps is not None else _MAX_STEPS if open_ended else math.inf

        def segment(state: LoopState, steps: float) -> tuple[LoopState, list[_Event]]:
            events, done = [], 0
            while done < steps and not state.done:
                state, step, emissions = loop.step(state)
                events.append(record.of(state, step, emissions))
                done += 1
            return state, events

        taken = 0
        lengths = self.adjoint.segment_lengths()
        while taken < limit and not state.done:
            length: float = min(next(lengths), limit - taken)
            if self.progress is not None:
                length = min(length, _STEPS_BETWEEN_REPORTS)
            state, events = self.adjoint.run(segment, state, length)
            taken += len(events)
            record.extend(events)
            if self.progress is not None:
                self.progress(1.0 if state.done else self._fraction_done(state))
        status = torch.where(state.status == Status.RUNNING, int(Status.MAX_STEPS), state.status)
        return record.solution(dataclasses.replace(state, status=status))

    def loop(self) -> Loop:
        stops = self.t1.reshape(1) if self.stops is None else torch.cat([self.stops, self.t1.reshape(1)])
        if self.method.lands and self.saves is not None:
            inside = (self.saves > self.t0) & (self.saves < self.t1)
            stops = torch.cat([self.saves[inside], stops])
        stops = stops[torch.argsort(stops.detach(), stable=True)]
        return Loop(
            self.term, self.method, self.controller, self.t1, stops, self.jumps, self.saves, self.event, self.stop,
            self.observer, self.interpolation, self.differentiate_event,
        )  # fmt: skip

    def _fraction_done(self, state: LoopState) -> float:
        open_ = state.status == Status.RUNNING
        slowest = torch.where(open_, state.t.detach(), self.t1.detach()).min()
        return float((slowest - self.t0.detach()) / (self.t1.detach() - self.t0.detach()))

    def _grid(self) -> Grid | None:
        """The grid of a march in lockstep, where that is possible and nothing asks for more."""
        plain = isinstance(self.method, LockstepMethod) and isinstance(self.controller, Fixed)
        extras = self.event, self.stop, self.stops, self.observer
        if not plain or self.dense or any(extra is not None for extra in extras):
            return None
        saves = None if self.every_step else self.saves if self.saves is not None else self.t0.new_empty(0)
        if saves is not None and saves.numel():
            saves = saves[saves > self.t0]
        times = self.times
        if times is None or (self.max_steps is not None and len(times) - 1 > self.max_steps):
            return None
        if isinstance(times, Tensor):
            return Grid(times, None, saves, self.interpolation)
        sizes = [b - a for a, b in itertools.pairwise(times)]
        return Grid(torch.tensor(times, dtype=torch.float64, device=self.y0.device), sizes, saves, self.interpolation)


def run_on_grid(problem: Problem, grid: Grid) -> Solution[Any]:
    """March over a grid in lockstep, again under guard if a system turns out not to be finite."""
    term, y0 = problem.term, problem.y0
    assert isinstance(problem.method, LockstepMethod)
    before = term.calls
    now = march(term, problem.method, grid, y0, problem.adjoint, problem.progress)
    calls = term.calls - before
    well = finite(term, now.y)
    steps, count = grid.times.numel() - 1, term.systems.count
    zero = torch.zeros(count, dtype=torch.int64, device=y0.device)
    end = grid.times[-1].expand(count)
    if not torch.compiler.is_compiling() and bool(well.all()):
        status, accepted = torch.full_like(zero, int(Status.SUCCESS)), torch.full_like(zero, steps)
        stats = _stats(torch.full_like(zero, calls), accepted, zero, zero)
    else:
        accepted = zero + steps
        if not torch.compiler.is_compiling():
            now = march(term, problem.method, grid, y0, problem.adjoint, guard=True)
            assert now.alive is not None
            assert now.steps_done is not None
            well, accepted = now.alive, now.steps_done
            end = grid.times[accepted]
        status = torch.where(well, int(Status.SUCCESS), int(Status.NON_FINITE)) + zero
        evaluations = torch.where(well, zero + calls, -((-(zero + calls) * (accepted + 1)) // steps))
        stats = _stats(evaluations, accepted, (~well).long(), zero)
    ts, ys = _grid_output(problem, grid, now)
    dt = (grid.times[1] - grid.times[0]).expand(term.systems.count) if steps else end * 0
    return _solution(problem, ts, ys, now.y, end, status, stats, dt, None)


def _grid_output(problem: Problem, grid: Grid, now: March) -> tuple[Tensor, Tensor]:
    if grid.saves is None:
        return grid.times, torch.stack([problem.y0, *now.found])
    if problem.saves is None:
        return grid.times[-1:], now.y.unsqueeze(0)
    at_start = problem.saves.numel() - grid.saves.numel()
    return problem.saves, torch.stack([*[problem.y0] * at_start, *now.found])


@dataclasses.dataclass(frozen=True, eq=False)
class _Event:
    """What is kept of one step."""

    emissions: list[Emission]
    step: Step | None
    accepted: Tensor | None
    t: Tensor | None
    y: Tensor | None


class _Record:
    """Collects the states that were asked for."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.places: list[Tensor | None] = [] if problem.saves is None else [None] * problem.saves.numel()
        self.steps: list[Step] = []
        self.accepted: list[Tensor] = []
        self.path = [(problem.t0.expand(problem.term.systems.count), problem.y0)]
        if problem.saves is not None:
            for k in range(int((problem.saves <= problem.t0).sum())):
                self.places[k] = problem.y0

    def of(self, state: LoopState, step: Step, emissions: list[Emission]) -> _Event:
        moved = (state.t > step.t0).detach() if self.problem.dense or self.problem.every_step else None
        if moved is None or not bool(moved.any()):
            return _Event(emissions, None, None, None, None)
        if self.problem.dense:
            step = dataclasses.replace(step, t1=torch.where(moved, state.t, step.t1))
        path = (state.t, state.y) if self.problem.every_step else (None, None)
        return _Event(emissions, step if self.problem.dense else None, moved, *path)

    def extend(self, events: list[_Event]) -> None:
        systems = self.problem.term.systems
        for event in events:
            for emission in event.emissions:
                old = self.places[emission.place]
                y = emission.y
                if emission.mask is not None:
                    y = torch.where(systems.spread(emission.mask), y, self.problem.y0 if old is None else old)
                self.places[emission.place] = y
            if event.step is not None and event.accepted is not None:
                self.steps.append(event.step)
                self.accepted.append(event.accepted)
            if event.t is not None and event.y is not None:
                self.path.append((event.t, event.y))

    def solution(self, state: LoopState) -> Solution[Any]:
        problem, systems = self.problem, self.problem.term.systems
        if problem.every_step:
            ts = torch.stack([t for t, _ in self.path])
            ts = ts[:, 0] if systems.count == 1 else ts
            ys = torch.stack([y for _, y in self.path])
        elif problem.saves is None:
            ts, ys = problem.t1.reshape(1), state.y.unsqueeze(0)
        else:
            ts = problem.saves
            rows = []
            for save, y in zip(problem.saves.detach(), self.places, strict=True):
                beyond = save > state.t.detach()
                if y is None or bool(beyond.any()):
                    y = state.y if y is None else torch.where(systems.spread(beyond), state.y, y)
                rows.append(y)
            ys = torch.stack(rows) if rows else state.y.new_empty(0, *state.y.shape)
        stats = _stats(state.nfe, state.accepted, state.rejected, state.energy_rejected)
        dense = Dense(tuple(self.steps), tuple(self.accepted)) if problem.dense else None
        return _solution(problem, ts, ys, state.y, state.t, state.status, stats, state.dt, dense)


def _stats(nfe: Tensor, accepted: Tensor, rejected: Tensor, energy_rejected: Tensor) -> dict[str, Tensor]:
    steps = accepted + rejected
    return {
        "nfe": nfe, "steps": steps, "accepted": accepted, "rejected": rejected, "energy_rejected": energy_rejected,
    }  # fmt: skip


def _solution(
    problem: Problem,
    ts: Tensor,
    ys: Tensor,
    y1: Tensor,
    t1: Tensor,
    status: Tensor,
    stats: dict[str, Tensor],
    dt: Tensor,
    dense: Dense | None,
) -> Solution[Any]:
    term = problem.term
    if term.backward:
        ts, t1 = -ts, -t1
    packing = term.packing
    shown_ys: Any
    shown_y1: Any
    shown_ys, shown_y1 = (ys, y1) if packing is None else (packing.unpack(ys), packing.unpack(y1))
    return Solution(ts, shown_ys, shown_y1, t1, status, stats, term, problem.method, dt, y1, ys, dense)


# -- checking the arguments -------------------------------------------------------------------------------------


def pack_state(y0: Any, systems: Systems) -> tuple[Tensor, Packing | None]:
    """The initial state as one tensor, and how to take it apart again."""
    parts = y0 if isinstance(y0, (tuple, list)) else (y0,)
    for part in parts:
        if not isinstance(part, Tensor):
            raise TypeError(f"y0 must be a tensor or a tuple of tensors, got {type(part).__name__}")
        if not (part.is_floating_point() or part.is_complex()):
            raise TypeError(f"y0 must be of a floating point or complex type, got {part.dtype}; try y0.float()")
    if isinstance(y0, Tensor):
        return y0, None
    packing = Packing(parts, systems)
    return packing.pack(parts), packing


def as_time(name: str, value: Any, device: torch.device) -> Tensor:
    """A time as a float64 scalar that keeps its gradient."""
    if isinstance(value, (int, float)):
        time = torch.tensor(float(value), dtype=torch.float64, device=device)
        good = math.isfinite(value)
    elif isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        time = value.reshape(()).to(device, torch.float64)
        good = torch.compiler.is_compiling() or bool(torch.isfinite(time))
    else:
        raise TypeError(f"{name} must be a number or a tensor with one element, got {value!r}")
    if not good:
        raise ValueError(f"{name} must be finite, got {float(value)}")
    return time


def as_times(name: str, value: Any, device: torch.device) -> Tensor:
    """Several times as a float64 vector that keeps its gradient."""
    times = torch.as_tensor(value, dtype=torch.float64, device=device)
    if times.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got shape {list(times.shape)}")
    return times


def default_controller(method: Method) -> Controller:
    return PID() if method.adaptive and not method.fixed_by_default else Fixed()


def state_problem(
    field: Field,
    y0: Any,
    t0: Any,
    t1: Any,
    *,
    method: Any = "dopri5",
    dt0: Any = None,
    controller: Controller | None = None,
    saveat: Any = None,
    systems: Systems | None = None,
    args: Any = None,
    adjoint: Adjoint | None = None,
    event: Event | None = None,
    stop: Stop | None = None,
    step_t: Any = None,
    jump_t: Any = None,
    dense: bool = False,
    max_steps: int | None = None,
    progress: bool | Progress = False,
) -> Problem:
    """Check the arguments of :func:`solve`, before any work is done."""
    if not callable(field):
        raise TypeError(f"field must be callable as field(t, y), got {type(field).__name__}")
    found = find_method(method)
    division = systems_of(field, systems)
    packed, packing = pack_state(y0, division)
    device = packed.device
    start, end = as_time("t0", t0, device), as_time("t1", t1, device)
    backward = _known(t1 < t0, if_compiling=False)
    term = Term(field, division, packed, args=args, packing=packing, backward=backward, perturb=jump_t is not None)
    if backward:
        start, end = -start, -end
    controller = default_controller(found) if controller is None else controller
    check_capabilities(term, found, controller, stop)
    adjoint = Direct() if adjoint is None else adjoint
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be Direct(), Checkpointed() or Backsolve(), got {adjoint!r}")
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    if dense and found.lands:
        raise ValueError(f"dense=True: method {found.name!r} has no interpolant worthy of it; name the times in saveat")
    step = None
    if dt0 is not None:
        step = as_time("dt0", dt0, device)
        if not _known(dt0 > 0, if_compiling=True):
            raise ValueError(f"dt0 must be positive (also when t1 < t0), got {float(step)}")
    saves, every_step = _saves(saveat, device, backward, start, end)
    stops = _inner_times("step_t", step_t, device, backward)
    jumps = _inner_times("jump_t", jump_t, device, backward)
    if stops is not None and jumps is not None and bool(torch.isin(stops, jumps).any()):
        raise ValueError("step_t and jump_t must not have elements in common")
    both = [times for times in (stops, jumps) if times is not None]
    inner = torch.cat(both) if both else None
    if inner is not None:
        inner = inner[(inner > start) & (inner < end)]
    times = None
    numbers = all(isinstance(x, (int, float)) for x in (t0, t1, dt0))
    if isinstance(controller, Fixed) and dt0 is not None and (numbers or not _needs_gradient(start, end, step)):
        first, last = (-float(t0), -float(t1)) if backward else (float(t0), float(t1))
        times = uniform_times(first, last, float(dt0), SLIVER) if last > first else None
    return Problem(
        term=term, method=found, controller=controller, adjoint=adjoint, y0=packed, t0=start, t1=end, dt0=step,
        saves=saves, every_step=every_step, stops=inner, jumps=jumps, event=event, stop=stop, dense=dense,
        max_steps=max_steps, progress=progress_bar(progress), times=times,
    )  # fmt: skip


def _known(condition: bool | Tensor, if_compiling: bool) -> bool:
    """A condition on numbers or tensors; of the latter nothing is known while compiling."""
    if isinstance(condition, Tensor):
        return if_compiling if torch.compiler.is_compiling() else bool(condition)
    return condition


def _needs_gradient(*times: Tensor | None) -> bool:
    return any(time is not None and time.requires_grad for time in times)


def check_capabilities(term: Term, method: Method, controller: Controller, stop: Stop | None) -> None:
    """Refuse what cannot work, before any work is done."""
    if not isinstance(controller, Controller):
        raise TypeError(f"controller must be PID(...) or Fixed(), got {controller!r}")
    if controller.retries and not method.adaptive:
        adaptive = "a method with an error estimate, such as 'dopri5' or 'kvaerno3'"
        raise ValueError(f"method {method.name!r} has no error estimate for {controller!r}: use Fixed(), or {adaptive}")
    if method.dissipative:
        if not term.has_energy:
            raise TypeError(f"method {method.name!r} needs a field with energy(t, y) -> [S]; {term.field!r} has none")
        if term.backward:
            raise ValueError(f"method {method.name!r} lowers the energy and so only runs forward: t1 must be above t0")
        if term.dtype.is_complex:
            raise TypeError(f"method {method.name!r} needs a real state, got {term.dtype}")
    if method.symplectic and (len(term.shape) == 0 or term.shape[-1] % 2):
        raise ValueError(
            f"method {method.name!r} splits the last dimension into positions and momenta (or takes a tuple of them), "
            f"but the state has shape {list(term.shape)}"
        )
    if stop is not None:
        stop.check(term)


def _saves(saveat: Any, device: torch.device, backward: bool, start: Tensor, end: Tensor) -> tuple[Tensor | None, bool]:
    if saveat is None:
        return None, False
    if isinstance(saveat, str):
        if saveat != "steps":
            raise ValueError(f'saveat must be None, times, or "steps", got {saveat!r}')
        return None, True
    times = as_times("saveat", saveat, device)
    times = -times if backward else times
    if not bool((times[1:] > times[:-1]).all()):
        raise ValueError("saveat must run strictly from t0 towards t1: no repeated times, no change of direction")
    if times.numel() and not bool((times[0] >= start) & (times[-1] <= end)):
        raise ValueError(f"saveat must lie between t0 and t1, got {float(times[0]):.6g} to {float(times[-1]):.6g}")
    return times, False


def _inner_times(name: str, value: Any, device: torch.device, backward: bool) -> Tensor | None:
    if value is None:
        return None
    times = as_times(name, value, device)
    return (-times if backward else times).sort().values
