"""From a field to a map of states, as a module; and `odeint` with a choice of backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

import solvers
from solvers import Adjoint, Controller, Method, Solution, Stop

Backend = Literal["solvers", "torchdiffeq"]
BACKENDS = ("solvers", "torchdiffeq")


def odeint(
    field: Any,
    h0: Any,
    t: Tensor,
    *,
    method: str | Method | None = None,
    backend: Backend = "solvers",
    adjoint: bool = False,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    options: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> Any:
    """Integrate a field and return the states at the times `t`, the first of which is the start.

    Args:
        field: Called as `field(t, h)`.
        h0: The state at `t[0]`.
        t: Times, strictly increasing or decreasing.
        method: A name known to the backend, `"dopri5"` by default; with "solvers", also a method object.
        backend: "solvers", which integrates every system with a step size of its own and knows the dissipative
            methods, or "torchdiffeq", where it is installed.
        adjoint: Gradients by the adjoint equation, in constant memory, rather than through every step.
        rtol: Relative tolerance of adaptive methods.
        atol: Absolute tolerance of adaptive methods.
        options: Options of the method, such as `{"step_size": 0.1}`.
        kwargs: Passed on to the backend's `odeint` or `odeint_adjoint`.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, odeint
    >>> odeint(LyapunovField(Quadratic([1.0])), torch.ones(1, 1), torch.tensor([0.0, 1.0])).flatten()
    tensor([1.0000, 0.3679])
    """
    settings = {"rtol": rtol, "atol": atol, "method": method, "options": options, **kwargs}
    if backend == "solvers":
        return (solvers.odeint_adjoint if adjoint else solvers.odeint)(field, h0, t, **settings)
    if backend == "torchdiffeq":
        torchdiffeq = _torchdiffeq()
        if isinstance(method, Method):
            raise TypeError(f'method must be a name with backend="torchdiffeq", got {method!r}')
        return (torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint)(field, h0, t, **settings)
    raise ValueError(f'backend must be "solvers" or "torchdiffeq", got {backend!r}')


def _torchdiffeq() -> Any:
    try:
        import torchdiffeq
    except ImportError as error:
        raise ImportError('backend="torchdiffeq" needs torchdiffeq: pip install "lyapflow[torchdiffeq]"') from error
    return torchdiffeq


@final
class Flow(nn.Module):
    """A field followed for a time: a module that maps the state at its start to the state at its end.

    Flows compose like layers, in `nn.Sequential` with others and with anything else. Two of `steps`, `step_size` and
    `time` say how far to go and how; adaptive methods need `time` only, and take `step_size` as their first step.

    Args:
        field: Called as `field(t, h)`.
        method: A name from :func:`solvers.methods` or a method; forward Euler by default.
        steps: How many steps of a fixed size.
        step_size: Their size.
        time: How long to follow the field.
        start: The time at the start.
        controller: Step-size control, as for :func:`solvers.solve`.
        adjoint: How gradients flow back: `solvers.Direct()` by default, `solvers.Checkpointed()` for little memory.
        max_steps: A limit on the number of steps, as for :func:`solvers.solve`.
        guard: Whether every step is guarded: a step that would raise the energy of a system is halved, for that
            system, until it does not. So the flow takes exactly `steps` steps and never raises the energy, as
            :func:`solvers.take_steps` says. For explicit methods and fields with an energy.
        backend: "solvers", or "torchdiffeq" where it is installed; then the tolerances are those of `solvers.PID()`.

    >>> import torch
    >>> from lyapflow import Flow, LyapunovField, MLPEnergy, MLPTangent
    >>> field = LyapunovField(MLPEnergy(4), MLPTangent(4))
    >>> model = torch.nn.Sequential(torch.nn.Linear(2, 4), Flow(field, steps=8, step_size=0.1), torch.nn.Linear(4, 3))
    >>> model(torch.randn(5, 2)).shape
    torch.Size([5, 3])
    >>> solution = Flow(field, steps=8, step_size=1.0, guard=True).solve(torch.randn(5, 4))
    >>> solution.energy.shape, bool((solution.energy.diff(dim=0) <= 1e-6).all())
    (torch.Size([9, 5]), True)
    """

    def __init__(
        self,
        field: Any,
        method: str | Method = "euler",
        steps: int | None = None,
        step_size: float | None = None,
        time: float | None = None,
        *,
        start: float = 0.0,
        controller: Controller | None = None,
        adjoint: Adjoint | None = None,
        max_steps: int | None = None,
        guard: bool = False,
        backend: Backend = "solvers",
    ) -> None:
        super().__init__()
        if not callable(field):
            raise TypeError(f"field must be callable as field(t, h), got {type(field).__name__}")
        if backend not in BACKENDS:
            raise ValueError(f'backend must be "solvers" or "torchdiffeq", got {backend!r}')
        if backend == "torchdiffeq":
            _torchdiffeq()
            refused = {"controller": controller, "adjoint": adjoint, "max_steps": max_steps, "guard": guard or None}
            for name, value in refused.items():
                if value is not None:
                    raise ValueError(f'{name} is for backend="solvers"; torchdiffeq has no such argument')
            if not isinstance(method, str):
                raise TypeError(f'method must be a name with backend="torchdiffeq", got {method!r}')
        else:
            method = solvers.method.base.find_method(method)
        self.field = field
        self.method = method
        self.time, self.step_size = _span(method, steps, step_size, time, controller)
        self.guard = guard
        if guard:
            self._check_guard(controller, max_steps)
        self.start = start
        self.controller, self.adjoint, self.max_steps = controller, adjoint, max_steps
        self.backend: Backend = backend

    def forward(self, h: Tensor) -> Tensor:
        """The state at the end."""
        if self.backend == "solvers":
            return self.solve(h).y1
        t = torch.tensor([self.start, self.start + self.time], dtype=h.dtype, device=h.device)
        name = "first_step" if self.chooses_steps else "step_size"
        options = {} if self.step_size is None else {name: self.step_size}
        same = solvers.PID()  # torchdiffeq's own tolerances are far tighter: the backends should mean the same
        settings: dict[str, Any] = {"rtol": same.rtol, "atol": same.atol, "options": options}
        return odeint(self.field, h, t, method=str(self.method), backend="torchdiffeq", **settings)[-1]

    @property
    def chooses_steps(self) -> bool:
        """Whether the method chooses its step sizes by itself."""
        return _chooses_steps(self.method, self.controller)

    def solve(
        self,
        h: Tensor,
        *,
        saveat: Tensor | Sequence[float] | str | None = None,
        stop: Stop | None = None,
        throw: bool = True,
        progress: bool = False,
    ) -> Solution[Tensor]:
        """The whole solution: states on the way, energies, statuses, statistics. For backend "solvers".

        With a guard, `saveat` is None or "steps", and the energies of all steps come without further evaluations.
        """
        if self.backend != "solvers":
            raise ValueError('Flow.solve needs backend="solvers"; with torchdiffeq, call lyapflow.odeint')
        if self.guard:
            if stop is not None or not (saveat is None or isinstance(saveat, str)):
                raise ValueError(
                    "a guarded flow takes all its steps and saves none between: use saveat='steps', no stop"
                )
            return self.take_steps(h, every_step=saveat is not None, throw=throw, progress=progress)
        return solvers.solve(
            self.field, h, self.start, self.start + self.time, method=self.method, dt0=self.step_size,
            controller=self.controller, adjoint=self.adjoint, max_steps=self.max_steps, saveat=saveat, stop=stop,
            throw=throw, progress=progress,
        )  # fmt: skip

    def take_steps(
        self,
        h: Tensor,
        *,
        guard: bool | None = None,
        every_step: bool = False,
        throw: bool = True,
        progress: bool = False,
    ) -> Solution[Tensor]:
        """The steps with the energies that come with them, guarded or not; see :func:`solvers.take_steps`.

        For explicit methods and fields with an energy; `guard` is by default that of the flow.
        """
        assert self.step_size is not None
        return solvers.take_steps(
            self.field, h, round(self.time / self.step_size), self.step_size, method=self.method,
            guard=self.guard if guard is None else guard, start=self.start, adjoint=self.adjoint,
            every_step=every_step, throw=throw, progress=progress,
        )  # fmt: skip

    def _check_guard(self, controller: Controller | None, max_steps: int | None) -> None:
        if not callable(getattr(self.field, "energy", None)):
            raise TypeError(f"guard=True needs a field with energy(t, h) -> [S]; {type(self.field).__name__} has none")
        if not isinstance(self.method, solvers.ExplicitRK) or self.step_size is None or controller or max_steps:
            name = self.method if isinstance(self.method, str) else self.method.name
            raise ValueError(
                "guard=True takes a given number of steps of an explicit method, as method='euler', steps=8, "
                f"step_size=0.1, without controller and max_steps; got method={name!r}, step_size={self.step_size}"
            )

    def extra_repr(self) -> str:
        name = self.method if isinstance(self.method, str) else self.method.name
        step = "" if self.step_size is None else f", step_size={self.step_size:.6g}"
        guard = ", guard=True" if self.guard else ""
        backend = "" if self.backend == "solvers" else f", backend={self.backend!r}"
        return f"method={name!r}, time={self.time:.6g}{step}{guard}{backend}"


_FIXED_IN_TORCHDIFFEQ = (
    "euler", "midpoint", "heun2", "heun3", "rk4", "explicit_adams", "implicit_adams", "fixed_adams",
)  # fmt: skip


def _span(
    method: str | Method, steps: int | None, step_size: float | None, time: float | None, controller: Controller | None
) -> tuple[float, float | None]:
    """How long to follow the field, and the step size."""
    for name, value in (("steps", steps), ("step_size", step_size), ("time", time)):
        if value is not None and not value > 0:
            raise ValueError(f"{name} must be positive, got {value}")
    if steps is not None and int(steps) != steps:
        raise ValueError(f"steps must be a whole number, got {steps}")
    if None not in (steps, step_size, time):
        raise ValueError("steps, step_size and time: two of them give the third; leave one out")
    if steps is not None and step_size is not None:
        return steps * step_size, step_size
    if steps is not None and time is not None:
        return time, time / steps
    if time is None:
        raise ValueError("say how far to go: time=..., or steps=... and step_size=...")
    if step_size is None and not _chooses_steps(method, controller):
        name = method if isinstance(method, str) else method.name
        raise ValueError(f"method {name!r} has a fixed step size: give steps or step_size as well as time")
    return time, step_size


def _chooses_steps(method: str | Method, controller: Controller | None) -> bool:
    if isinstance(method, str):  # one of torchdiffeq's
        return method not in _FIXED_IN_TORCHDIFFEQ
    if controller is not None:
        return not isinstance(controller, solvers.Fixed)
    return method.adaptive and not method.fixed_by_default
