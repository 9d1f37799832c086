"""An integration that the caller drives, step by step."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import Tensor

from .arguments import state_problem
from .controllers import Controller
from .loop import LoopState
from .method.base import Method
from .systems import Systems
from .typing import Field, State


class Stepper:
    """Advances an integration step by step; it can be left at any step and resumed from its state.

    The stepper itself never changes: :meth:`start` gives a state, :meth:`step` the next one. A state consists of
    tensors; :meth:`save` turns it into a dictionary for `torch.save`, and :meth:`load` takes it back.

    Args:
        field: As for :func:`solve`, as are all others.
        y0: The state at `t0`.
        t0: Start of the time span.
        t1: End of the time span.
        method: A name or a method.
        dt0: First or fixed step size.
        controller: How step sizes are chosen.
        systems: Which entries are independent systems.
        args: Passed on to the field.

    >>> import torch
    >>> from solvers import Stepper
    >>> stepper = Stepper(lambda t, y: -y, torch.ones(1), 0.0, 1.0, method="rk4", dt0=0.25)
    >>> state = stepper.start()
    >>> while not state.done:
    ...     state = stepper.step(state)
    >>> stepper.y(state), state.accepted
    (tensor([0.3679]), tensor([4]))
    """

    def __init__(
        self,
        field: Field,
        y0: State,
        t0: float | Tensor,
        t1: float | Tensor,
        *,
        method: str | Method = "dopri5",
        dt0: float | Tensor | None = None,
        controller: Controller | None = None,
        systems: Systems | None = None,
        args: Any = None,
    ) -> None:
        self._problem = state_problem(
            field, y0, t0, t1, method=method, dt0=dt0, controller=controller, systems=systems, args=args
        )
        self._loop = self._problem.loop()

    def start(self) -> LoopState:
        """The state before the first step."""
        return self._loop.start(self._problem.t0, self._problem.y0, self._problem.dt0)

    def step(self, state: LoopState) -> LoopState:
        """The state after one more try of every running system; a state that is done comes back as it is."""
        return state if state.done else self._loop.step(state)[0]

    def y(self, state: LoopState) -> State:
        """The state of the systems, in the form of `y0`."""
        packing = self._problem.term.packing
        return state.y if packing is None else packing.unpack(state.y)

    def t(self, state: LoopState) -> Tensor:
        """The time that every system has reached, `[S]`."""
        return -state.t if self._problem.term.backward else state.t

    @staticmethod
    def save(state: LoopState) -> dict[str, Any]:
        """The state as a dictionary of tensors and plain values, detached from any graph."""
        saved = {}
        for field in dataclasses.fields(state):
            value = getattr(state, field.name)
            if isinstance(value, tuple):
                value = tuple(part.detach() for part in value)
            saved[field.name] = value.detach() if isinstance(value, Tensor) else value
        return saved

    @staticmethod
    def load(saved: dict[str, Any]) -> LoopState:
        """The state that :meth:`save` made a dictionary of."""
        return LoopState(**saved)
