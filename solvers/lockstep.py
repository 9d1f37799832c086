"""The quick loop: every system takes the same steps, over a grid of times that is known beforehand.

It does not ask after every step whether anything went wrong: an entry that is not finite stays so, and a look at the
end is enough. Only if that look finds something is the march repeated under watch, which freezes each failed system
where it was last well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from .adjoint import Adjoint
from .loop import finite
from .method.base import LockstepMethod, Step
from .progress import STEPS_BETWEEN_REPORTS, Progress
from .systems import Single
from .term import Term


@dataclasses.dataclass(frozen=True, eq=False)
class Grid:
    """The times of the steps, `[N + 1]`, and which states are wanted.

    `sizes` are the step sizes as numbers, where they are known as such and need no gradient. `saves` are times inside
    the grid; None means every grid point. `interpolation`, "linear" or "cubic", replaces the method's own way.
    """

    times: Tensor
    sizes: list[float] | None
    saves: Tensor | None
    interpolation: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class March:
    """Where a march has come to; `alive` and `steps_done` are known under watch only."""

    y: Tensor
    f: Tensor | None
    found: tuple[Tensor, ...] = ()
    alive: Tensor | None = None
    steps_done: Tensor | None = None


def uniform_times(t0: float, t1: float, dt: float, sliver: float) -> list[float]:
    """Times from `t0` to `t1` in steps of `dt`, the last one shorter where it has to be."""
    steps = max(1, -int(-((t1 - t0) / dt - sliver) // 1))
    return [t0 + i * dt for i in range(steps)] + [t1]


def march(
    term: Term,
    method: LockstepMethod,
    grid: Grid,
    y0: Tensor,
    adjoint: Adjoint,
    progress: Progress | None = None,
    watch: bool = False,
) -> March:
    """Take all steps of the grid."""
    steps = grid.times.numel() - 1
    nodes = [stage.unbind(0) for stage in term.stage_times(grid.times[:-1], grid.times[1:], method.nodes)]
    sizes: Sequence[float | Tensor] = grid.sizes or (grid.times[1:] - grid.times[:-1]).to(term.real_dtype).unbind(0)
    shared_time = isinstance(term.systems, Single)
    wanted = _wanted_by_step(grid)
    start = y0.detach()

    def segment(first: int, last: int, now: March) -> March:
        y, f, alive, steps_done = now.y, now.f, now.alive, now.steps_done
        found = list(now.found)
        for i in range(first, last):
            times = [node[i] for node in nodes]
            if not shared_time:
                times = [term.systems.spread(time.expand(term.systems.count)) for time in times]
            h = sizes[i]
            new, f_new, stages = method.advance(term, times, h, y, f)
            if watch:
                assert alive is not None
                assert steps_done is not None
                alive = alive & finite(term, new)
                if not bool(alive.all()):
                    # As in Loop: again, with the failed systems where they started, so that no NaN is in the graph.
                    living = term.systems.spread(alive)
                    times = [torch.where(living, time, node[0]) for time, node in zip(times, nodes, strict=True)]
                    f = None if f is None else torch.where(living, f, 0.0)
                    new, f_new, stages = method.advance(term, times, h, torch.where(living, y, start), f)
                    new = torch.where(living, new, y)
                steps_done = steps_done + alive
            if grid.saves is None:
                found.append(new)
            elif wanted[i]:
                found += _inside(term, method, grid, i, wanted[i], Ends(y, new, f, f_new, stages))
            y, f = new, f_new
        return March(y, f, tuple(found), alive, steps_done)

    now = March(y0, None)
    if watch:
        alive = finite(term, y0)
        now = dataclasses.replace(now, alive=alive, steps_done=torch.zeros_like(alive, dtype=torch.int64))
    done = 0
    lengths = adjoint.segment_lengths()
    while done < steps:
        length = next(lengths)
        if progress is not None:
            length = min(length, STEPS_BETWEEN_REPORTS)
        last = min(steps, done + length)
        now = adjoint.run(segment, done, last, now)
        done = last
        if progress is not None:
            progress(done / steps)
    return now


def _wanted_by_step(grid: Grid) -> list[list[int]]:
    """For each step the places of the save times in it, its start excluded."""
    wanted: list[list[int]] = [[] for _ in range(grid.times.numel() - 1)]
    if grid.saves is not None and grid.saves.numel():
        steps = torch.searchsorted(grid.times.detach(), grid.saves.detach(), right=False) - 1
        for k, i in enumerate(steps.clamp(min=0).tolist()):
            wanted[i].append(k)
    return wanted


@dataclasses.dataclass(frozen=True, eq=False)
class Ends:
    """Both ends of a step: the states, the derivatives where they are known, and the stages between."""

    y0: Tensor
    y1: Tensor
    f0: Tensor | None
    f1: Tensor | None
    stages: tuple[Tensor, ...]


def _inside(term: Term, method: LockstepMethod, grid: Grid, i: int, places: list[int], ends: Ends) -> list[Tensor]:
    """The states at the save times of these places, all in step `i`."""
    assert grid.saves is not None
    start, end = grid.times[i], grid.times[i + 1]
    step, states = None, []
    for k in places:
        t = grid.saves[k]
        if bool(t == end) and not t.requires_grad:
            states.append(ends.y1)
            continue
        if step is None:
            f0 = ends.stages[0] if ends.stages else ends.f0
            both = start.expand(term.systems.count), end.expand(term.systems.count)
            h = (end - start).to(term.real_dtype)
            step = Step(*both, h, ends.y0, ends.y1, 0, f0=f0, f1=ends.f1, stages=ends.stages)
            step = method.complete(term, step, grid.interpolation)
        theta = ((t - start) / (end - start)).to(term.real_dtype)
        states.append(method.interpolate(step, theta, grid.interpolation))
    return states
