"""The arguments of `solve`: checked before any work is done, and brought to one form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .adjoint import Adjoint, Direct
from .controllers import PID, Controller, Fixed
from .lockstep import uniform_times
from .loop import SLIVER, Event
from .method.base import Method, find_method
from .packing import Packing
from .problem import Problem
from .progress import Progress, progress_bar
from .stopping import Stop
from .systems import Systems
from .term import Term, systems_of
from .typing import Field

_LONGEST_GRID = 1_000_000  # steps


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
        # A grid too long to write out is stepped through like any other way, which may end early.
        if last > first and (last - first) / float(dt0) <= _LONGEST_GRID:
            times = uniform_times(first, last, float(dt0), SLIVER)
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
