"""`solve`: from a field, a state and a time span to a :class:`Solution`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .adjoint import Adjoint, Backsolve
from .arguments import state_problem
from .autograd import outside_inference_mode
from .controllers import Controller
from .loop import Event
from .method.base import Method
from .progress import Progress
from .solution import Solution, Y
from .stopping import Stop
from .systems import Systems
from .typing import Field


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
