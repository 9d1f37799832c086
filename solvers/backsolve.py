"""Gradients by solving the adjoint equation backward in time (R. T. Q. Chen et al., NeurIPS 2018)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .adjoint import Backsolve, Direct
from .autograd import fresh, outside_inference_mode, recording
from .controllers import PID
from .drop_in import CALLBACKS, Call, largest_rms, odeint
from .loop import Event
from .method.base import Method
from .problem import Problem
from .solution import Solution
from .systems import Systems
from .term import Term
from .typing import Field, State


@dataclasses.dataclass(frozen=True)
class _Backward:
    """How the adjoint equation is solved: the arguments of `odeint`."""

    rtol: Any
    atol: Any
    method: str | Method | None
    options: Mapping[str, Any]


class _Adjoint(torch.autograd.Function):
    """Runs `forward_solve` without recording; its gradients come from the adjoint equation.

    The output holds the states at the times `t`; with an event, `t` is replaced by the start and the event's time.
    """

    @staticmethod
    def forward(
        ctx: Any,
        forward_solve: Callable[[], tuple[Tensor, Tensor]],
        term: Term,
        backward: _Backward,
        event: bool,
        y0: Tensor,
        t: Tensor,
        *params: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            times, states = forward_solve()
        ctx.term, ctx.settings, ctx.event, ctx.t_shape = term, backward, event, t.shape
        ctx.mark_non_differentiable(times)
        ctx.save_for_backward(times, states, *params)
        return times, states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        by_states = cotangents[1]
        times, states, *params = ctx.saved_tensors
        wants_t = ctx.needs_input_grad[5]
        by_y0, by_t, by_params = _solve_adjoint(ctx.term, ctx.settings, times, states, by_states, params, wants_t)
        if by_t is not None and ctx.event:  # only the start is an input
            by_t = torch.cat([by_t[:1], by_t.new_zeros(ctx.t_shape[0] - 1)])
        return None, None, None, None, by_y0, by_t, *by_params


def _solve_adjoint(
    term: Term,
    settings: _Backward,
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
            found = torch.autograd.grad(f, inputs, -adjoint, materialize_grads=True) if f.requires_grad else None
        by_time, *others = [torch.zeros_like(x) for x in (time, point, *params)]
        if found is not None and wants_t:
            by_time, *others = found
        elif found is not None:
            others = list(found)
        return by_time, f.detach(), *others

    for name in CALLBACKS:
        if hasattr(term.field, f"{name}_adjoint"):
            setattr(augmented, name, getattr(term.field, f"{name}_adjoint"))
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
        end = odeint(
            augmented,
            start,
            times[i - 1 : i + 1].flip(0),
            rtol=settings.rtol,
            atol=settings.atol,
            method=settings.method,
            options=settings.options,
        )
        by_time, _, adjoint, *by_params = (part[-1] for part in end)
        adjoint = adjoint + by_states[i - 1]
    by_times[0] = by_time.real if by_time.is_complex() else by_time
    by_params = [g.real if g.is_complex() and not p.is_complex() else g for g, p in zip(by_params, params, strict=True)]
    return adjoint, by_times if wants_t else None, by_params


def _norm_of(kind: Any, state_norm: Callable[[Any], Any] | None) -> Callable[[tuple[Tensor, ...]], Tensor]:
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


@outside_inference_mode
def odeint_adjoint(
    func: Field,
    y0: State,
    t: Tensor,
    *,
    rtol: float | Tensor | tuple[Any, ...] = 1e-7,
    atol: float | Tensor | tuple[Any, ...] = 1e-9,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Event | None = None,
    adjoint_rtol: float | Tensor | tuple[Any, ...] | None = None,
    adjoint_atol: float | Tensor | tuple[Any, ...] | None = None,
    adjoint_method: str | Method | None = None,
    adjoint_options: Mapping[str, Any] | None = None,
    adjoint_params: Iterable[Tensor] | None = None,
    args: Any = None,
    systems: Systems | None = None,
) -> Any:
    """:func:`odeint` with gradients from the adjoint equation: constant memory, not exact.

    Args:
        func: As for :func:`odeint`; a module, unless `adjoint_params` are given.
        y0: As for :func:`odeint`, as are `t`, `rtol`, `atol`, `method`, `options`, `event_fn`, `args`, `systems`.
        adjoint_rtol: Tolerances of the backward solve; those of the forward solve by default.
        adjoint_atol: Likewise.
        adjoint_method: The method of the backward solve; that of the forward solve by default.
        adjoint_options: Its options; those of the forward solve by default, but for `norm`. `norm="seminorm"` leaves
            the parameters out of the error estimate.
        adjoint_params: The tensors that get gradients, the parameters of `func` by default.

    >>> import torch
    >>> from solvers import odeint_adjoint
    >>> field = torch.nn.Linear(1, 1, bias=False)
    >>> states = odeint_adjoint(lambda t, y: field(y), torch.ones(1), torch.tensor([0.0, 1.0]),
    ...                         adjoint_params=field.parameters())
    >>> states[-1].sum().backward()
    >>> bool(torch.allclose(field.weight.grad, field.weight.detach().exp(), rtol=1e-4))
    True
    """
    if adjoint_params is None and not isinstance(func, torch.nn.Module):
        raise ValueError(
            "func must be a torch.nn.Module, so that its parameters are known; otherwise name them in adjoint_params "
            "(which may be empty)"
        )
    if adjoint_method is not None and adjoint_method != method and options is not None and adjoint_options is None:
        raise ValueError("adjoint_method differs from method, and options are given: give adjoint_options too")
    call = Call(func, y0, t, rtol, atol, method, options, event_fn, args, systems)
    found = func.parameters() if adjoint_params is None else adjoint_params  # type: ignore[attr-defined]
    params = [p for p in found if p.requires_grad]
    if adjoint_options is None:
        adjoint_options = {key: value for key, value in (options or {}).items() if key != "norm"}
    settings = _Backward(
        _for_augmented(rtol if adjoint_rtol is None else adjoint_rtol, call),
        _for_augmented(atol if adjoint_atol is None else adjoint_atol, call),
        method if adjoint_method is None else adjoint_method,
        _adjoint_options(adjoint_options, call),
    )

    def forward_solve() -> tuple[Tensor, Tensor]:
        if event_fn is None:
            return call.t.detach(), call.states(call.y0, call.t, Direct())
        event_t, states = call.until_event(call.y0, call.t)
        end = -event_t if call.term.backward else event_t
        return torch.stack([call.t[0].detach(), end.reshape(())]), states

    if event_fn is not None and call.term.systems.count != 1:
        raise ValueError(
            "odeint_adjoint: event_fn works with one system only, whose end the backward solve starts from"
        )
    times, states = _Adjoint.apply(forward_solve, call.term, settings, event_fn is not None, call.y0, call.t, *params)
    if event_fn is None:
        return call.unpack(states)
    return -times[1] if call.term.backward else times[1], call.unpack(states)


def _for_augmented(tolerance: Any, call: Call) -> Any:
    """Tolerances given per entry of the state cannot be used for the augmented state: take the strictest."""
    if isinstance(tolerance, (tuple, list)):
        return min(float(torch.as_tensor(x).min()) for x in tolerance)
    return float(tolerance.min()) if isinstance(tolerance, Tensor) else tolerance


def _adjoint_options(options: Mapping[str, Any], call: Call) -> dict[str, Any]:
    settings = dict(options)
    for name in ("step_t", "jump_t"):
        if settings.get(name) is not None and call.term.backward:
            settings[name] = -torch.as_tensor(settings[name])
    kind = settings.pop("norm", None)
    if kind is None or kind == "seminorm":
        packing, given = call.term.packing, call.options.get("norm")
        state_norm = given
        if packing is not None and call.term.packing is not None:
            of_parts = largest_rms if given is None else given

            def state_norm(part: Tensor, packing: Any = packing) -> Any:
                return of_parts(packing.unpack(part))

        settings["norm"] = _norm_of(kind, state_norm)
    elif call.term.packing is not None:
        packing = call.term.packing

        def split_state(parts: tuple[Tensor, ...]) -> Any:
            time, y, adjoint, *params = parts
            return kind((time, *packing.unpack(y), *packing.unpack(adjoint), *params))

        settings["norm"] = split_state
    else:
        settings["norm"] = kind
    return settings


def solve_backsolve(problem: Problem, adjoint: Backsolve) -> Solution[Any]:
    """`solve` with :class:`Backsolve`: the solution's states carry gradients from the adjoint equation."""
    if problem.every_step or problem.dense or problem.event is not None or problem.stop is not None:
        raise ValueError('adjoint=Backsolve() cannot be combined with saveat="steps", dense, event or stop')
    field = problem.term.field
    if adjoint.params is None and not isinstance(field, torch.nn.Module):
        raise ValueError("adjoint=Backsolve(): the field is not a module, so name its tensors: Backsolve(params=[...])")
    found = field.parameters() if adjoint.params is None else adjoint.params  # type: ignore[attr-defined]
    params = [p for p in found if p.requires_grad]
    tolerances = problem.controller if isinstance(problem.controller, PID) else PID()
    method = problem.method if adjoint.method is None else adjoint.method
    options: dict[str, Any] = {"norm": _norm_of(None, None)}
    if not problem.controller.retries:
        step = adjoint.dt0 if adjoint.dt0 is not None else problem.dt0
        options = {"step_size": float(step)} if step is not None else {}
    elif adjoint.dt0 is not None:
        options["first_step"] = adjoint.dt0
    settings = _Backward(
        tolerances.rtol if adjoint.rtol is None else adjoint.rtol,
        tolerances.atol if adjoint.atol is None else adjoint.atol,
        method,
        options,
    )
    saves = problem.t1.reshape(1) if problem.saves is None else problem.saves
    with_start = bool(saves[0] > problem.t0) if len(saves) else True
    t = torch.cat([problem.t0.reshape(1), saves]) if with_start else saves
    cell: list[Solution[Any]] = []

    def forward_solve() -> tuple[Tensor, Tensor]:
        solution = dataclasses.replace(problem, saves=saves, adjoint=Direct()).run()
        cell.append(solution)
        states = solution._ys
        return t.detach(), torch.cat([problem.y0.unsqueeze(0), states]) if with_start else states

    _, states = _Adjoint.apply(forward_solve, problem.term, settings, False, problem.y0, t, *params)
    (solution,) = cell
    ys, y1 = states[1:] if with_start else states, states[-1]
    packing = problem.term.packing
    shown = (ys, y1) if packing is None else (packing.unpack(ys), packing.unpack(y1))
    return dataclasses.replace(solution, ys=shown[0], y1=shown[1], _ys=ys, _y1=y1)
