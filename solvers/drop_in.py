"""torchdiffeq's interface: `odeint`, `odeint_adjoint` and `odeint_event`.

Code written for torchdiffeq works after changing the import. What is new here: `args`, `systems`, and every method of
the registry.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from .adjoint import Adjoint, Direct
from .arguments import check_capabilities, pack_state
from .autograd import outside_inference_mode
from .backsolve import AdjointEquation, augmented_norm
from .controllers import PID, Controller, Fixed, check_tolerance, largest_rms
from .lockstep import uniform_times
from .loop import SLIVER, Event, Observer
from .method.adams import Adams
from .method.base import LockstepMethod, Method, did_you_mean, find_method
from .method.scipy_solver import SciPySolver
from .packing import Packing
from .problem import Problem
from .systems import Single, Systems
from .term import Term, systems_of
from .typing import Field, State

_ADAPTIVE_OPTIONS = {
    "first_step", "safety", "ifactor", "dfactor", "max_num_steps", "step_t", "jump_t", "norm", "dtype", "min_step",
    "max_step", "pcoeff", "icoeff", "dcoeff",
}  # fmt: skip
_FIXED_OPTIONS = {"step_size", "grid_constructor", "interp", "perturb", "norm", "max_num_steps"}
_METHOD_OPTIONS: dict[type[Method], tuple[str, ...]] = {
    Adams: ("max_order", "max_iters"),
    SciPySolver: ("solver", "min_step", "max_step"),
}
_CALLBACKS = ("callback_step", "callback_accept_step", "callback_reject_step")


@outside_inference_mode
def odeint(
    func: Field,
    y0: State,
    t: Tensor,
    *,
    rtol: float | Tensor | tuple[Any, ...] = 1e-7,
    atol: float | Tensor | tuple[Any, ...] = 1e-9,
    method: str | Method | None = None,
    options: Mapping[str, Any] | None = None,
    event_fn: Event | None = None,
    args: Any = None,
    systems: Systems | None = None,
) -> Any:
    """Integrate `dy/dt = func(t, y)` and return the states at the times `t`, as torchdiffeq's `odeint` does.

    Args:
        func: Called as `func(t, y)`, or `func(t, y, args)` where `args` is given.
        y0: The state at `t[0]`: a tensor or a tuple of tensors.
        t: Times, strictly increasing or decreasing; the first one is the start.
        rtol: Relative tolerance of adaptive methods: a number, a tensor, or one for each part of a tuple state.
        atol: Absolute tolerance, likewise.
        method: A name from :func:`methods` or a method; `"dopri5"` by default.
        options: Adaptive methods: `first_step`, `min_step`, `max_step`, `max_num_steps`, `norm`, `step_t`, `jump_t`,
            `safety`, `ifactor`, `dfactor`, `dtype` (of time), and the controller's `pcoeff`, `icoeff`, `dcoeff`.
            Methods of a fixed step size: `step_size` or `grid_constructor` (one step from each time to the next by
            default), `interp` ("linear" or "cubic"), `perturb`, `max_num_steps`. Adams methods: `max_order`,
            `max_iters`. `scipy_solver`: `solver`, `min_step`, `max_step`. Others are ignored with a warning.
        event_fn: `event_fn(t, y)`; the integration ends where it changes sign. Then `t` has two elements, of which
            the second one only gives the direction.
        args: Passed on to `func`.
        systems: Which entries are independent systems: `func.systems` by default where there is one, else one system.

    Returns:
        The states, with the time first; or, with `event_fn`, the time of the event and the states at start and event.

    >>> import torch
    >>> from solvers import odeint
    >>> odeint(lambda t, y: -y, torch.tensor([1.0]), torch.tensor([0.0, 1.0]))
    tensor([[1.0000],
            [0.3679]])
    """
    call = Call(func, y0, t, rtol, atol, method, options, event_fn, args, systems)
    if event_fn is None:
        return call.unpack(call.states(call.y0, call.t, Direct()))
    event_t, states = call.until_event(call.y0, call.t)
    return call.event_time(event_t, states[-1]), call.unpack(states)


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
    options = dict(adjoint_options)
    for name in ("step_t", "jump_t"):
        if options.get(name) is not None and call.term.backward:
            options[name] = -torch.as_tensor(options[name])
    options["norm"] = _adjoint_norm(options.get("norm"), call)
    settings: dict[str, Any] = {
        "rtol": _strictest(rtol if adjoint_rtol is None else adjoint_rtol),
        "atol": _strictest(atol if adjoint_atol is None else adjoint_atol),
        "method": method if adjoint_method is None else adjoint_method,
        "options": options,
    }

    def integrate(augmented: Field, start: tuple[Tensor, ...], span: Tensor) -> tuple[Tensor, ...]:
        for name in _CALLBACKS:
            if hasattr(func, f"{name}_adjoint"):
                setattr(augmented, name, getattr(func, f"{name}_adjoint"))
        return tuple(part[-1] for part in odeint(augmented, start, span, **settings))

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
    times, states = AdjointEquation.apply(
        forward_solve, call.term, integrate, event_fn is not None, call.y0, call.t, *params
    )
    if event_fn is None:
        return call.unpack(states)
    event_t = (-times[1] if call.term.backward else times[1]).to(call.t_dtype)
    return call.event_time(event_t, states[-1]), call.unpack(states)


@outside_inference_mode
def odeint_event(
    func: Field,
    y0: State,
    t0: Tensor,
    *,
    event_fn: Event,
    reverse_time: bool = False,
    odeint_interface: Callable[..., Any] = odeint,
    **kwargs: Any,
) -> tuple[Tensor, Any]:
    """Integrate until `event_fn(t, y)` changes sign, with gradients through the time at which that happens.

    Args:
        func: As for :func:`odeint`.
        y0: The state at `t0`.
        t0: The start, a tensor with one element.
        event_fn: Gives one value, or several of which the first to change sign counts.
        reverse_time: Integrate backward in time.
        odeint_interface: `odeint` or `odeint_adjoint`.
        kwargs: Passed on to it.

    Returns:
        The time of the event, and the states at the start and at the event.

    >>> import torch
    >>> from solvers import odeint_event
    >>> y0 = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    >>> start = torch.tensor(0.0, dtype=torch.float64)
    >>> time, states = odeint_event(lambda t, y: -y, y0, start, event_fn=lambda t, y: y[0] - 0.5)
    >>> time.detach(), torch.autograd.grad(time, y0)[0]
    (tensor(0.6931, dtype=torch.float64), tensor([1.0000], dtype=torch.float64))
    """
    start = t0.reshape(-1)
    t = torch.cat([start, start.detach() + (-1.0 if reverse_time else 1.0)])
    event_t, states = odeint_interface(func, y0, t, event_fn=event_fn, **kwargs)
    call = Call(func, y0, t, event_fn=event_fn, args=kwargs.get("args"), systems=kwargs.get("systems"))
    packing = call.term.packing
    at_event = states[-1] if packing is None else packing.pack([part[-1] for part in states])
    if not event_t.requires_grad:
        return event_t, states
    # The state moves with the time of the event, at its velocity.
    shift = (event_t - event_t.detach()).reshape(-1).to(call.term.real_dtype)
    at_event = at_event + call.term.systems.spread(shift) * call.velocity(event_t.detach(), at_event)
    if packing is None:
        return event_t, torch.stack([states[0], at_event])
    parts = packing.unpack(at_event)
    return event_t, tuple(torch.stack([part[0], end]) for part, end in zip(states, parts, strict=True))


def _adjoint_norm(kind: Any, call: Call) -> Any:
    """The norm of the augmented state that `adjoint_options` ask for."""
    packing, given = call.term.packing, call.options.get("norm")
    if kind is None or kind == "seminorm":
        state_norm = given
        if packing is not None:
            of_parts = largest_rms if given is None else given

            def state_norm(part: Tensor) -> Any:
                return of_parts(packing.unpack(part))

        return augmented_norm(kind, state_norm)
    if packing is None:
        return kind

    def split_state(parts: tuple[Tensor, ...]) -> Any:
        time, y, adjoint, *params = parts
        return kind((time, *packing.unpack(y), *packing.unpack(adjoint), *params))

    return split_state


def _strictest(tolerance: Any) -> Any:
    """Tolerances given per entry of the state cannot be used for the augmented state."""
    if isinstance(tolerance, (tuple, list)):
        return min(float(torch.as_tensor(x).min()) for x in tolerance)
    return float(tolerance.min()) if isinstance(tolerance, Tensor) else tolerance


class Call:
    """The arguments of `odeint`, checked and brought to one form."""

    def __init__(
        self,
        func: Field,
        y0: Any,
        t: Any,
        rtol: Any = 1e-7,
        atol: Any = 1e-9,
        method: str | Method | None = None,
        options: Mapping[str, Any] | None = None,
        event_fn: Event | None = None,
        args: Any = None,
        systems: Systems | None = None,
    ) -> None:
        if not callable(func):
            raise TypeError(f"func must be callable as func(t, y), got {type(func).__name__}")
        self.method = SciPySolver() if method == "scipy_solver" else find_method("dopri5" if method is None else method)
        self.options = dict(options or {})
        division = systems_of(func, systems)
        self.y0, packing = pack_state(y0, division)
        t = _check_times(t)
        if event_fn is not None and len(t) != 2:
            raise ValueError(f"with event_fn, t must have two elements (start and direction), got {len(t)}")
        backward = len(t) > 1 and bool(t[0] > t[1])
        self.t_dtype = t.dtype
        t = t.to(self.y0.device)
        self.t = -t if backward else t
        self.kind = type(self.method)
        self.fixed = not self.method.adaptive or self.method.fixed_by_default
        self._check_options()
        self.method = self._configured(rtol, atol)
        nudge = bool(self.options.get("perturb", False)) or self.options.get("jump_t") is not None
        self.term = Term(func, division, self.y0, args=args, packing=packing, backward=backward, perturb=nudge)
        self.controller = self._controller(rtol, atol)
        check_capabilities(self.term, self.method, self.controller, None)
        self.event_fn = event_fn
        self._event_signs: Tensor | None = None

    # -- running ------------------------------------------------------------------------------------------------

    def states(self, y0: Tensor, t: Tensor, adjoint: Adjoint) -> Tensor:
        """The states at the times, as one tensor; `t` runs forward."""
        if len(t) == 1:
            return y0.unsqueeze(0).clone()
        solution = self.problem(y0, t, adjoint).run()
        error = solution.error()
        if error is not None:
            raise error
        return solution._ys

    def until_event(self, y0: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """The time of the event, in the caller's direction of time, and the states at start and event."""
        problem = self.problem(y0, t, Direct())
        if self.fixed and self.options.get("step_size") is None:
            raise ValueError(f"event_fn: method {self.method.name!r} needs options={{'step_size': ...}}")
        endless = torch.full_like(problem.t1, float("inf"))
        problem = dataclasses.replace(
            problem,
            t1=endless,
            saves=None,
            stops=None if self.fixed else problem.stops,
            event=self.event,
            differentiate_event=False,
            times=None,
        )
        solution = problem.run()
        error = solution.error()
        if error is not None:
            raise error
        event_t = solution.t1.detach().to(self.t_dtype)
        event_t = event_t.reshape(()) if isinstance(self.term.systems, Single) else event_t
        return event_t, torch.stack([y0, solution._y1])

    def unpack(self, states: Tensor) -> Any:
        packing = self.term.packing
        return states if packing is None else packing.unpack(states)

    def problem(self, y0: Tensor, t: Tensor, adjoint: Adjoint) -> Problem:
        options = self.options
        time = t.to(torch.promote_types(options.get("dtype", torch.float64), self.term.real_dtype))
        dt0, times, stops, jumps, limit = None, None, None, None, options.get("max_num_steps")
        observer = self._observer()
        if self.fixed:
            dt0 = time.new_tensor(float(options.get("step_size") or math.inf))
            times = self._grid(y0, t, time)
            marches = isinstance(self.method, LockstepMethod) and observer is None
            if not marches or (limit is not None and len(times) - 1 > limit):
                stops = times[1:-1] if isinstance(times, Tensor) else time.new_tensor(times[1:-1])
                times = None
        else:
            if options.get("first_step") is not None:
                dt0 = torch.as_tensor(options["first_step"], dtype=time.dtype, device=time.device).reshape(())
            steps, jumps = self._inner_times("step_t", time), self._inner_times("jump_t", time)
            inner = [x for x in (steps, jumps) if x is not None]
            if len(inner) == 2 and bool(torch.isin(*inner).any()):
                raise ValueError("options: step_t and jump_t must not have elements in common")
            stops = torch.cat(inner) if inner else None
            limit = None if limit is None else int(limit) * (len(t) - 1)  # torchdiffeq counts for each interval
        return Problem(
            term=self.term, method=self.method, controller=self.controller, adjoint=adjoint, y0=y0, t0=time[0],
            t1=time[-1], dt0=dt0, saves=time, stops=stops, jumps=jumps, max_steps=limit, observer=observer, times=times,
            interpolation=options.get("interp", "linear") if self.fixed else None,
        )  # fmt: skip

    def event(self, t: Tensor, y: Any) -> Tensor:
        """The event function as the loop wants it: one value per system, all positive at the start."""
        assert self.event_fn is not None
        if isinstance(y, Tensor) and self.term.packing is not None:
            y = self.term.packing.unpack(y)
        if self._event_signs is None:
            with torch.no_grad():
                start = self.term.time(self.t[:1].expand(self.term.systems.count))
                state = self.y0 if self.term.packing is None else self.term.packing.unpack(self.y0)
                self._event_signs = torch.sign(self.event_fn(start, state))
        values = self.event_fn(t, y) * self._event_signs
        return values.reshape(self.term.systems.count, -1).amin(1)

    def event_time(self, event_t: Tensor, at_event: Tensor) -> Tensor:
        """The time of the event with its gradient.

        `c(t*, y(t*)) = 0` defines t*: as a Newton step whose value is zero it carries the gradient.
        """
        systems, spread = self.term.systems, self.term.systems.spread
        time = event_t.detach().reshape(-1)
        miss = self.event(spread(time), at_event)
        if not miss.requires_grad:
            return event_t
        with torch.enable_grad():
            moving_t, moving_y = time.clone().requires_grad_(), at_event.detach().requires_grad_()
            value = self.event(spread(moving_t), moving_y)
            by_t, by_y = torch.zeros_like(moving_t), torch.zeros_like(moving_y)
            if value.requires_grad:
                by_t, by_y = torch.autograd.grad(value.sum(), (moving_t, moving_y), materialize_grads=True)
        slope = by_t + systems.inner(by_y, self.velocity(event_t, at_event))
        shift = -(miss - miss.detach()) / torch.where(slope == 0, 1.0, slope)
        return event_t + shift.reshape(event_t.shape).to(event_t.dtype)

    def velocity(self, t: Tensor, y: Tensor) -> Tensor:
        """The field at a time as the caller counts it, without gradients."""
        with torch.no_grad():
            time = t.detach().reshape(-1).to(self.term.real_dtype)
            return self.term.field_at(self.term.systems.spread(time), y.detach())

    # -- options ------------------------------------------------------------------------------------------------

    def _check_options(self) -> None:
        allowed = set(_FIXED_OPTIONS if self.fixed else _ADAPTIVE_OPTIONS) | set(_METHOD_OPTIONS.get(self.kind, ()))
        unknown = sorted(set(self.options) - allowed)
        if unknown:
            hints = ", ".join(f"{name!r}{did_you_mean(name, allowed)}" for name in unknown)
            kind = "of a fixed step size" if self.fixed else "of adaptive step size"
            message = f"options: method {self.method.name!r}, {kind}, ignores {hints}; it knows {sorted(allowed)}"
            warnings.warn(message, stacklevel=5)
            self.options = {name: value for name, value in self.options.items() if name in allowed}
        if self.options.get("step_size") is not None:
            if self.options.get("grid_constructor") is not None:
                raise ValueError("options: step_size and grid_constructor exclude each other")
            if not self.options["step_size"] > 0:
                raise ValueError(f"options: step_size must be positive, got {self.options['step_size']}")
        if self.options.get("first_step") is not None and not self.options["first_step"] > 0:
            raise ValueError(f"options: first_step must be positive, got {self.options['first_step']}")
        if self.options.get("max_num_steps") is not None and self.options["max_num_steps"] < 1:
            raise ValueError(f"options: max_num_steps must be at least 1, got {self.options['max_num_steps']}")
        if self.options.get("interp", "linear") not in ("linear", "cubic"):
            raise ValueError(f"options: interp must be 'linear' or 'cubic', got {self.options['interp']!r}")

    def _configured(self, rtol: Any, atol: Any) -> Method:
        """The method with the options that are its own."""
        method, own = self.method, {k: v for k, v in self.options.items() if k in _METHOD_OPTIONS.get(self.kind, ())}
        if isinstance(method, Adams) and own:
            return Adams(method.name, corrector=method.corrector, **own)
        return SciPySolver(rtol=rtol, atol=atol, **own) if isinstance(method, SciPySolver) else method

    def _controller(self, rtol: Any, atol: Any) -> Controller:
        rtol, atol = self._tolerance("rtol", rtol), self._tolerance("atol", atol)
        if self.fixed:
            check_tolerance("rtol", rtol)
            check_tolerance("atol", atol)
            return Fixed()
        settings = {
            name: float(self.options[name])
            for name in ("safety", "ifactor", "dfactor", "min_step", "max_step", "pcoeff", "icoeff", "dcoeff")
            if name in self.options
        }
        norm, packing = self.options.get("norm"), self.term.packing
        if packing is not None and isinstance(self.term.systems, Single):
            of_parts = largest_rms if norm is None else norm

            def norm(flat: Tensor, of_parts: Any = of_parts, packing: Packing = packing) -> Any:
                return of_parts(packing.unpack(flat))

        return PID(rtol=rtol, atol=atol, norm=norm, **settings)

    def _tolerance(self, name: str, value: Any) -> Any:
        packing = self.term.packing
        if packing is not None and isinstance(value, Tensor) and value.ndim == 1:
            value = tuple(value)
        if not isinstance(value, (tuple, list)):
            return value
        if packing is None or len(value) != len(packing.shapes):
            parts = "no tuple" if packing is None else f"{len(packing.shapes)} parts"
            raise ValueError(f"{name} has {len(value)} elements, but y0 has {parts}")
        like = self.y0.new_empty(0, dtype=self.term.real_dtype)
        pairs = zip(value, packing.shapes, strict=True)
        return packing.pack([torch.as_tensor(x).to(like).expand(shape) for x, shape in pairs])

    def _inner_times(self, name: str, t: Tensor) -> Tensor | None:
        value = self.options.get(name)
        if value is None:
            return None
        times = torch.as_tensor(value).to(t)
        times = (-times if self.term.backward else times).sort().values
        inside = times > t[0]
        return times[inside if self.event_fn is not None else inside & (times < t[-1])]

    def _grid(self, y0: Tensor, t: Tensor, time: Tensor) -> Tensor | list[float]:
        """The times that steps end at, as numbers where no gradient is wanted."""
        constructor, step_size = self.options.get("grid_constructor"), self.options.get("step_size")
        if constructor is not None:
            backward = self.term.backward
            state = y0 if self.term.packing is None else self.term.packing.unpack(y0)
            grid = constructor(self.term.field, state, -t if backward else t)
            if not isinstance(grid, Tensor) or grid.numel() == 0:
                raise TypeError(f"options: grid_constructor must give a tensor of times, got {grid!r}")
            grid = (-grid if backward else grid).to(time.dtype)
            if grid[0] != time[0] or grid[-1] != time[-1] or not bool((grid[1:] > grid[:-1]).all()):
                raise ValueError("options: grid_constructor must give times that run strictly from t[0] to t[-1]")
        elif step_size is not None:
            numbers = uniform_times(float(time[0].detach()), float(time[-1].detach()), float(step_size), SLIVER)
            if not time.requires_grad:
                return numbers
            inner = time[0] + torch.arange(len(numbers) - 1, device=time.device, dtype=time.dtype) * float(step_size)
            grid = torch.cat([inner, time[-1:]])
        else:
            grid = time
        if grid.requires_grad or torch.compiler.is_compiling():
            return grid
        return [float(x) for x in grid.tolist()]

    def _observer(self) -> Observer | None:
        found = {name: getattr(self.term.field, name) for name in _CALLBACKS if hasattr(self.term.field, name)}
        called = _CALLBACKS[:1] if self.fixed else _CALLBACKS
        unused = sorted(set(found) - set(called))
        if unused:
            warnings.warn(f"Solver {self.method.name!r} does not support callbacks {unused}", stacklevel=6)
            found = {name: callback for name, callback in found.items() if name in called}
        if not found:
            return None
        term = self.term

        def observe(what: str, t0: Tensor, y0: Tensor, dt: Tensor) -> None:
            callback = found.get(f"callback_{what}")
            if callback is not None:
                time = term.time(t0)
                callback(time, y0 if term.packing is None else term.packing.unpack(y0), term.systems.spread(dt))

        return observe


def _check_times(t: Any) -> Tensor:
    if not isinstance(t, Tensor):
        raise TypeError(f"t must be a tensor of times, got {type(t).__name__}")
    if not t.is_floating_point():
        raise TypeError(f"t must be of a floating point type, got {t.dtype}")
    if t.ndim != 1 or len(t) == 0:
        raise ValueError(f"t must be one-dimensional and not empty, got shape {list(t.shape)}")
    if torch.compiler.is_compiling():
        return t
    times = t.tolist()  # as numbers: a few comparisons of tensors cost more than a whole step
    if not all(map(math.isfinite, times)):
        raise ValueError("t must be finite")
    rising = len(times) < 2 or times[0] < times[1]
    if not all(a < b if rising else b < a for a, b in itertools.pairwise(times)):
        raise ValueError("t must be strictly increasing or strictly decreasing: no repeated times, no turning back")
    return t
