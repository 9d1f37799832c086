"""An integration as one object: run it on a grid or step by step, and collect what was asked for."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import torch
from torch import Tensor

from .adjoint import Adjoint
from .controllers import Controller, Fixed
from .lockstep import Grid, March, march
from .loop import Emission, Event, Loop, LoopState, Observer, finite
from .method.base import LockstepMethod, Method, Step
from .progress import STEPS_BETWEEN_REPORTS, Progress
from .solution import Dense, Solution
from .status import Status
from .stopping import Stop
from .term import Term

_MAX_STEPS = 100_000


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
                length = min(length, STEPS_BETWEEN_REPORTS)
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
    """March over a grid in lockstep, again under watch if a system turns out not to be finite."""
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
        stats = _stats(torch.full_like(zero, calls), accepted, zero, zero, zero)
    else:
        accepted = zero + steps
        if not torch.compiler.is_compiling():
            now = march(term, problem.method, grid, y0, problem.adjoint, watch=True)
            assert now.alive is not None
            assert now.steps_done is not None
            well, accepted = now.alive, now.steps_done
            end = grid.times[accepted]
        status = torch.where(well, int(Status.SUCCESS), int(Status.NON_FINITE)) + zero
        evaluations = torch.where(well, zero + calls, -((-(zero + calls) * (accepted + 1)) // steps))
        stats = _stats(evaluations, accepted, (~well).long(), zero, zero)
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
        stats = _stats(state.nfe, state.accepted, state.rejected, state.energy_rejected, state.energy_evaluations)
        dense = Dense(tuple(self.steps), tuple(self.accepted)) if problem.dense else None
        return _solution(problem, ts, ys, state.y, state.t, state.status, stats, state.dt, dense)


def _stats(
    nfe: Tensor, accepted: Tensor, rejected: Tensor, energy_rejected: Tensor, energy_evaluations: Tensor
) -> dict[str, Tensor]:
    return {
        "nfe": nfe, "steps": accepted + rejected, "accepted": accepted, "rejected": rejected,
        "energy_rejected": energy_rejected, "energy_evaluations": energy_evaluations,
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
