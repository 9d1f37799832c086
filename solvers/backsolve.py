"""Gradients by solving the adjoint equation backward in time (R. T. Q. Chen et al., NeurIPS 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .adjoint import Backsolve, Direct
from .autograd import fresh, recording
from .controllers import PID, Controller, Fixed, largest_rms
from .method.base import find_method
from .packing import Packing
from .problem import Problem
from .solution import Solution
from .systems import Single
from .term import Term
from .typing import Field

Parts = tuple[Tensor, ...]
# Integrates a field whose state is a tuple from the first of two times to the second, and returns the state there.
Integrate = Callable[[Field, Parts, Tensor], Parts]


class AdjointEquation(torch.autograd.Function):
    """Runs `forward_solve` without recording; its gradients come from the adjoint equation.

    The output holds the states at the times `t`; with an event, `t` is replaced by the start and the event's time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        forward_solve: Callable[[], tuple[Tensor, Tensor]],
        term: Term,
        backward: Integrate,
        event: bool,
        y0: Tensor,
        t: Tensor,
        *params: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            times, states = forward_solve()
        ctx.term, ctx.integrate, ctx.event, ctx.t_shape = term, backward, event, t.shape
        ctx.mark_non_differentiable(times)
        ctx.save_for_backward(times, states, *params)
        return times, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        by_states = cotangents[1]
        times, states, *params = ctx.saved_tensors
        wants_t = ctx.needs_input_grad[5]
        by_y0, by_t, by_params = _solve_adjoint(ctx.term, ctx.integrate, times, states, by_states, params, wants_t)
        if by_t is not None and ctx.event:  # only the start is an input
            by_t = torch.cat([by_t[:1], by_t.new_zeros(ctx.t_shape[0] - 1)])
        return None, None, None, None, by_y0, by_t, *by_params


def _solve_adjoint(
    term: Term,
    integrate: Integrate,
    times: Tensor,
    states: Tensor,
    by_states: Tensor,
    params: list[Tensor],
    wants_t: bool,
) -> tuple[Tensor, Tensor | None, list[Tensor]]:
    """Cotangents of the first state, the times and the parameters; time runs forward in `times`."""
    count = term.systems.count

    def velocity(t: Tensor, y: Tensor) -> Tensor:
        return term(t.expand(count), y)

    def augmented(t: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        _, y, adjoint = state[:3]
        with recording():
            # Without need for it, the cotangent of time is not integrated: it would only cost steps.
            time, point = fresh(t) if wants_t else t, fresh(y)
            f = velocity(time, point)
            inputs = (*((time,) if wants_t else ()), point, *params)
            found = _vjp(f, inputs, -adjoint) if f.requires_grad else None
        by_time, *others = [torch.zeros_like(x) for x in (time, point, *params)]
        if found is not None and wants_t:
            by_time, *others = found
        elif found is not None:
            others = list(found)
        return by_time, f.detach(), *others

    adjoint = by_states[-1]
    by_params = [torch.zeros_like(p) for p in params]
    by_time = times.new_zeros(()).to(term.real_dtype)
    by_times = torch.zeros_like(times)
    for i in range(len(times) - 1, 0, -1):
        if wants_t:
            # Moving an output time moves the output at the field's velocity.
            effect = (velocity(times[i], states[i]).conj() * by_states[i]).real.sum()
            by_times[i] = effect
            by_time = by_time - effect
        start = (by_time, states[i], adjoint, *by_params)
        by_time, _, adjoint, *by_params = integrate(augmented, start, times[i - 1 : i + 1].flip(0))
        adjoint = adjoint + by_states[i - 1]
    by_times[0] = by_time.real if by_time.is_complex() else by_time
    by_params = [g.real if g.is_complex() and not p.is_complex() else g for g, p in zip(by_params, params, strict=True)]
    return adjoint, by_times if wants_t else None, by_params


def _vjp(f: Tensor, inputs: Parts, cotangent: Tensor) -> Parts:
    # The graph may reach beyond the field, to what was computed from the parameters outside of it: it is needed again.
    return torch.autograd.grad(f, inputs, cotangent, materialize_grads=True, retain_graph=True)


def augmented_norm(kind: Any, state_norm: Callable[[Any], Any] | None) -> Callable[[tuple[Tensor, ...]], Tensor]:
    """The norm of the augmented state: by default the largest of its parts, as "seminorm" without the parameters."""

    def of_state(part: Tensor) -> Tensor:
        return torch.as_tensor(largest_rms((part,)) if state_norm is None else state_norm(part))

    def norm(parts: tuple[Tensor, ...]) -> Tensor:
        time, y, adjoint, *params = parts
        sizes = [time.abs().reshape(()), of_state(y), of_state(adjoint)]
        if kind != "seminorm":
            sizes += [largest_rms((p,)) for p in params if p.numel()]
        return torch.stack([size.reshape(()).to(sizes[0]) for size in sizes]).amax()

    return norm


def solve_backsolve(problem: Problem, adjoint: Backsolve) -> Solution[Any]:
    """`solve` with :class:`Backsolve`: the solution's states carry gradients from the adjoint equation."""
    from .integrate import solve

    if problem.every_step or problem.dense or problem.event is not None or problem.stop is not None:
        raise ValueError('adjoint=Backsolve() cannot be combined with saveat="steps", dense, event or stop')
    field = problem.term.field
    if adjoint.params is None and not isinstance(field, torch.nn.Module):
        raise ValueError("adjoint=Backsolve(): the field is not a module, so name its tensors: Backsolve(params=[...])")
    found = field.parameters() if adjoint.params is None else adjoint.params  # type: ignore[attr-defined]
    params = [p for p in found if p.requires_grad]
    tolerances = problem.controller if isinstance(problem.controller, PID) else PID()
    rtol = _strictest(tolerances.rtol if adjoint.rtol is None else adjoint.rtol)
    atol = _strictest(tolerances.atol if adjoint.atol is None else adjoint.atol)
    method = find_method(problem.method if adjoint.method is None else adjoint.method)
    step = adjoint.dt0 if adjoint.dt0 is not None else None if problem.controller.retries else problem.dt0

    def integrate(augmented: Field, start: Parts, span: Tensor) -> Parts:
        controller: Controller = problem.controller
        if controller.retries or not isinstance(controller, Fixed):
            packing, norm = Packing(start, Single()), augmented_norm(None, None)
            controller = PID(rtol=rtol, atol=atol, norm=lambda flat: norm(packing.unpack(flat)))
        back = solve(augmented, start, span[0], span[1], method=method, dt0=step, controller=controller)
        return back.y1

    saves = problem.t1.reshape(1) if problem.saves is None else problem.saves
    with_start = bool(saves[0] > problem.t0) if len(saves) else True
    t = torch.cat([problem.t0.reshape(1), saves]) if with_start else saves
    cell: list[Solution[Any]] = []

    def forward_solve() -> tuple[Tensor, Tensor]:
        solution = dataclasses.replace(problem, saves=saves, adjoint=Direct()).run()
        cell.append(solution)
        states = solution._ys
        return t.detach(), torch.cat([problem.y0.unsqueeze(0), states]) if with_start else states

    _, states = AdjointEquation.apply(forward_solve, problem.term, integrate, False, problem.y0, t, *params)
    (solution,) = cell
    ys, y1 = states[1:] if with_start else states, states[-1]
    packing = problem.term.packing
    shown = (ys, y1) if packing is None else (packing.unpack(ys), packing.unpack(y1))
    return dataclasses.replace(solution, ys=shown[0], y1=shown[1], _ys=ys, _y1=y1)


def _strictest(tolerance: float | Tensor) -> float:
    """Tolerances given per entry of the state cannot be used for the augmented state."""
    return float(tolerance.min()) if isinstance(tolerance, Tensor) else tolerance
