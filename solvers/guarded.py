"""A given number of steps of one size, in which a guard keeps the energy from rising.

:func:`solve` follows a field to a given time, and a dissipative method takes as many steps as that needs. A layer of a
network is another thing: a map made of a fixed number of steps. :func:`take_steps` takes exactly that many. Where a
step would raise the energy of a system, the guard halves it for that system until the energy does not rise; a system
for which no part of the step is good stays where it is for that step. So the promise holds for every step, in training
as in inference, at the price of one energy after the last step: all other energies come with the evaluations of the
field that the steps need anyway.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from .adjoint import Adjoint, Backsolve, Direct
from .autograd import outside_inference_mode
from .loop import finite
from .method.base import Method, find_method
from .method.explicit import ExplicitRK
from .progress import STEPS_BETWEEN_REPORTS, Progress, progress_bar
from .solution import Solution
from .status import Status, failed
from .systems import Systems
from .term import Term, systems_of
from .typing import Field

ROUNDINGS = 8.0
"""A rise of an energy by this many machine epsilons of its size is rounding."""
HALVINGS = 20
"""How often the guard halves a step before it lets the system rest."""


def rises(energy: Tensor) -> Tensor:
    """In which steps the energy of which system rises beyond rounding: `[N + 1, S]` to `[N, S]`.

    An energy that is not finite counts as a rise.

    >>> import torch
    >>> from solvers import rises
    >>> rises(torch.tensor([[4.0, 1.0], [2.0, 1.0], [2.0, 3.0]]))
    tensor([[False, False],
            [False,  True]])
    """
    return ~descends(energy[:-1], energy[1:])


def descends(before: Tensor, after: Tensor) -> Tensor:
    """Where an energy has not risen from `before` to `after`, beyond rounding."""
    return (after <= before + ROUNDINGS * torch.finfo(before.dtype).eps * before.abs()) & torch.isfinite(after)


@outside_inference_mode
def take_steps(
    field: Field,
    y0: Tensor,
    steps: int,
    step_size: float,
    *,
    method: str | Method = "euler",
    guard: bool = True,
    start: float = 0.0,
    systems: Systems | None = None,
    adjoint: Adjoint | None = None,
    every_step: bool = False,
    throw: bool = True,
    progress: bool | Progress = False,
) -> Solution[Tensor]:
    r"""Take `steps` steps of size `step_size` of an explicit method, guarded so that no step raises the energy.

    A guarded step of a system is :math:`y_{k+1} = \Phi_{s \cdot \text{step\_size}}(y_k)` with the first of
    :math:`s = 1, 1/2, 1/4, \dots` for which :math:`V(y_{k+1}) \le V(y_k)` up to rounding (8 machine epsilons of
    :math:`|V|`), or :math:`s = 0` where 20 halvings do not help. Gradients treat s as a constant. An energy that
    depends on time is compared at the time of the start of the step.

    Args:
        field: Called as `field(t, y)`, with `energy(t, y) -> [S]`.
        y0: The state at the start.
        steps: How many steps.
        step_size: The size of a step that the guard does not shorten.
        method: An explicit method that takes steps of a fixed size, as "euler", "heun" or "rk4".
        guard: Without it the steps are those of the method, whatever the energy does.
        start: The time at the start. Shortened or not, every step adds `step_size` to the time.
        systems: Which entries are independent systems; by default `field.systems`.
        adjoint: How gradients flow back: :class:`Direct` or :class:`Checkpointed`.
        every_step: Keep the states after every step, the start included, rather than the last one.
        throw: Raise :class:`SolveError` if the energy or the field of a system is not finite.
        progress: Show a progress bar, or call a function with the fraction done.

    Returns:
        A solution whose `energy` has the energies at the start and after every step, `[steps + 1, S]`, also where only
        the last state is kept, and whose `fraction` has the part of each step that was taken, `[steps, S]`.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic
    >>> from solvers import take_steps
    >>> field = LyapunovField(Quadratic([1.0, 10.0]))
    >>> solution = take_steps(field, torch.tensor([[0.0, 1.0]]), steps=3, step_size=0.3)  # Euler needs 2 / 10
    >>> solution.fraction.flatten(), bool((solution.energy.diff(dim=0) <= 0).all())
    (tensor([0.5000, 0.5000, 0.5000]), True)
    """
    chosen = find_method(method)
    _check(field, y0, steps, step_size, chosen, adjoint)
    assert isinstance(chosen, ExplicitRK)
    term = Term(field, systems_of(field, systems), y0)
    bar = progress_bar(progress)

    def walk(y: Tensor) -> Solution[Tensor]:
        return _Walk(term, chosen, steps, float(step_size), start, guard, every_step).run(y, adjoint or Direct(), bar)

    solution = walk(y0)
    error = solution.error() if throw else None
    if error is not None:
        raise error
    lost = failed(solution.status)
    if solution.y1.requires_grad and bool(lost.any()):
        # A NaN times a zero cotangent is a NaN in the gradient of parameters that all systems share. So the others
        # walk once more, without it.
        solution = _replaced(solution, lost, walk(torch.where(term.systems.spread(lost), 0.0, y0)))
    return solution


def _replaced(solution: Solution[Tensor], lost: Tensor, again: Solution[Tensor]) -> Solution[Tensor]:
    """What was found of the lost systems, as numbers, and everything else from `again`."""
    rows = again._term.systems.spread(lost)
    y1, ys = (torch.where(rows, old.detach(), new) for old, new in ((solution.y1, again.y1), (solution.ys, again.ys)))
    energy = torch.where(lost, solution.energy.detach(), again.energy)
    return dataclasses.replace(solution, y1=y1, ys=ys, _y1=y1, _ys=ys, _energy=energy)


def _check(field: Any, y0: Any, steps: Any, step_size: Any, method: Method, adjoint: Adjoint | None) -> None:
    if not callable(getattr(field, "energy", None)):
        raise TypeError(f"take_steps needs a field with energy(t, y) -> [S]; {type(field).__name__} has none")
    if not isinstance(y0, Tensor) or not y0.is_floating_point():
        raise TypeError(f"y0 must be a tensor of real numbers, got {getattr(y0, 'dtype', type(y0).__name__)}")
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a positive whole number, got {steps!r}")
    if not 0 < step_size < float("inf"):
        raise ValueError(f"step_size must be positive and finite, got {step_size!r}")
    if not isinstance(method, ExplicitRK):
        raise ValueError(
            f"method must be an explicit Runge-Kutta method, such as 'euler' or 'rk4', got {method.name!r}; "
            "dissipative and implicit methods follow a field to a given time: see solve"
        )
    if isinstance(adjoint, Backsolve):
        raise ValueError("adjoint must be Direct() or Checkpointed(): guarded steps have no adjoint equation")


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """Where the steps have come to: the state, the field and the energy there, and what is kept of the way."""

    y: Tensor
    f: Tensor | None
    energy: Tensor
    ys: tuple[Tensor, ...]
    energies: tuple[Tensor, ...]


class _Walk:
    """What does not change from step to step, and what was decided about the steps."""

    def __init__(
        self, term: Term, method: ExplicitRK, steps: int, size: float, start: float, guard: bool, every_step: bool
    ) -> None:
        self.term, self.method, self.steps, self.size = term, method, steps, size
        self.guard, self.every_step = guard, every_step
        self.times = start + size * torch.arange(steps + 1, dtype=torch.float64, device=term.device)
        self.tries: list[list[Tensor | None]] = [[] for _ in range(steps)]  # fractions of each step, the last one good
        self.refusals = torch.zeros(term.systems.count, dtype=torch.int64, device=term.device)
        self.lost = torch.zeros_like(self.refusals, dtype=torch.bool)

    def run(self, y0: Tensor, adjoint: Adjoint, progress: Progress | None) -> Solution[Tensor]:
        here, done, lengths = self._begin(y0), 0, adjoint.segment_lengths()
        while done < self.steps:
            length = min(next(lengths), STEPS_BETWEEN_REPORTS if progress else self.steps)
            first, done = done, min(self.steps, done + length)
            here = adjoint.run(self._segment, first, done, here)
            if progress is not None:
                progress(done / self.steps)
        return self._solution(here)

    def _begin(self, y0: Tensor) -> _Place:
        f, energy = self.term.velocity_and_energy(self._time(0), y0)
        self.lost = ~torch.isfinite(energy.detach())
        return _Place(y0, f, energy, (y0,) if self.every_step else (), (energy,))

    def _segment(self, first: int, last: int, here: _Place) -> _Place:
        for i in range(first, last):
            here = self._step(i, here)
        return here

    def _step(self, i: int, here: _Place) -> _Place:
        decided = self.tries[i]
        if decided:  # computed again: the same tries, so that checkpoints find what they recorded
            return [self._carry_out(i, here, fraction) for fraction in decided][-1]
        fraction = None
        while True:
            self.tries[i].append(fraction)
            there = self._carry_out(i, here, fraction)
            if not self.guard:
                return there
            good = self._descends(i, here, there.y, there.energy)
            good = good if fraction is None else good | (fraction == 0)
            if bool(good.all()):
                return there
            fraction = self._shorten(i, here, good, fraction)

    def _carry_out(self, i: int, here: _Place, fraction: Tensor | None) -> _Place:
        """The step, each system with its fraction of the size (None: all of it)."""
        y = self._advance(i, here, fraction)
        end, f = self._time(i + 1), None
        if i + 1 < self.steps:
            f, energy = self.term.velocity_and_energy(end, y)
        else:
            energy = self.term.energy(end, y)
        return _Place(y, f, energy, (*here.ys, y) if self.every_step else (), (*here.energies, energy))

    def _advance(self, i: int, here: _Place, fraction: Tensor | None) -> Tensor:
        term, method = self.term, self.method
        begin, h = self._time(i), self.size
        if fraction is None:
            return method.advance(term, self._stage_times(begin, self._time(i + 1)), h, here.y, here.f)[0]
        part = fraction * h
        times = self._stage_times(begin, begin + part)
        y = method.advance(term, times, term.systems.spread(part.to(term.real_dtype)), here.y, here.f)[0]
        # Zero times a field that is not finite is not zero.
        return torch.where(term.systems.spread(fraction == 0), here.y, y)

    def _stage_times(self, t0: Tensor, t1: Tensor) -> list[Tensor]:
        if self.method.stages == 1:  # the only stage is the field at the start, which is known
            return []
        return [self.term.systems.spread(t) for t in self.term.stage_times(t0, t1, self.method.nodes)]

    @torch.no_grad()
    def _descends(self, i: int, here: _Place, y: Tensor, energy: Tensor) -> Tensor:
        """Which systems have not gained energy in a step to `y`, where `energy` is that at the end of the step."""
        if not self.term.energy_is_timed:
            return descends(here.energy.detach(), energy.detach())
        begin = self._time(i)
        return descends(self.term.energy(begin, here.y.detach()), self.term.energy(begin, y.detach()))

    @torch.no_grad()
    def _shorten(self, i: int, here: _Place, good: Tensor, fraction: Tensor | None) -> Tensor:
        """For each system that is not good, the first of the halved steps that does not raise its energy."""
        if fraction is None:
            fraction = self.times.new_ones(len(good))
        pending = ~good
        if here.f is not None:  # where the field is not finite, no part of a step helps
            self.lost = self.lost | (pending & ~finite(self.term, here.f))
        while bool(pending.any()):
            self.refusals = self.refusals + pending
            fraction = torch.where(pending, fraction / 2, fraction)
            fraction = torch.where(pending & (self.lost | (fraction < 0.5**HALVINGS)), 0.0, fraction)
            y = self._advance(i, here, fraction)
            pending = pending & (fraction > 0)
            if bool(pending.any()):
                pending = pending & ~self._descends(i, here, y, self.term.energy(self._time(i + 1), y))
        return fraction

    def _time(self, i: int) -> Tensor:
        return self.times[i].expand(self.term.systems.count)

    def _solution(self, here: _Place) -> Solution[Tensor]:
        whole = self.times.new_ones(self.term.systems.count)
        lost = self.lost | ~finite(self.term, here.y)
        status = torch.where(
            lost, int(Status.NOT_DISSIPATIVE if self.guard else Status.NON_FINITE), int(Status.SUCCESS)
        )
        fraction = torch.stack([whole if tries[-1] is None else tries[-1] for tries in self.tries])
        ys = torch.stack(here.ys) if self.every_step else None
        energy = torch.stack(here.energies)
        return _solution_of(
            self.term, self.method, self.times, self.size, here.y, ys, energy, fraction, status, self.refusals
        )


def steps_taken(
    field: Field, step_size: float, y1: Tensor, ys: Tensor | None, energy: Tensor, fraction: Tensor
) -> Solution[Tensor]:
    """The solution that :func:`take_steps` gives, of Euler steps that a layer has taken in a way of its own.

    Args:
        field: What it followed.
        step_size: The size of its steps.
        y1: The last state.
        ys: All states, with the start first; or None.
        energy: `[steps + 1, S]`.
        fraction: `[steps, S]`, the part of each step that was taken.
    """
    term, method = Term(field, systems_of(field, None), y1), find_method("euler")
    times = step_size * torch.arange(len(energy), dtype=torch.float64, device=y1.device)
    halved = torch.where(fraction > 0, -fraction.log2(), HALVINGS + 1.0).round().long().sum(0)
    status = torch.full_like(halved, int(Status.SUCCESS))
    return _solution_of(term, method, times, step_size, y1, ys, energy, fraction, status, halved)


def _solution_of(
    term: Term, method: Method, times: Tensor, size: float, y1: Tensor, ys: Tensor | None, energy: Tensor,
    fraction: Tensor, status: Tensor, refusals: Tensor,
) -> Solution[Tensor]:  # fmt: skip
    steps, count = fraction.shape
    none, all_ = torch.zeros_like(refusals), torch.full_like(refusals, steps)
    stats = {"nfe": none + term.calls, "steps": all_, "accepted": all_, "rejected": none, "energy_rejected": refusals}
    kept = y1.unsqueeze(0) if ys is None else ys
    return Solution(
        times[-1:] if ys is None else times, kept, y1, times[-1].expand(count), status, stats, term, method,
        times.new_full((count,), size), y1, kept, _energy=energy, fraction=fraction.to(term.real_dtype),
    )  # fmt: skip
