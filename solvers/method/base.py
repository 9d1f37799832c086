"""What a method is: one step of time, and the registry of those known by name."""

from __future__ import annotations

import dataclasses
import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from .. import interpolation
from ..term import Term
from ..typing import PerSystemBool


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """What one step did, for every system at once.

    `t1` is the time that was really reached, which may differ from the time asked for; `h` is the step size spread
    over the state; `f0` and `f1` are the derivatives at both ends where they are known. `energies` counts evaluations
    of the energy, as `evaluations` those of the field.
    """

    t0: Tensor
    t1: Tensor
    h: Tensor
    y0: Tensor
    y1: Tensor
    evaluations: int | Tensor
    error: Tensor | None = None
    f0: Tensor | None = None
    f1: Tensor | None = None
    stages: tuple[Tensor, ...] = ()
    failed: PerSystemBool | None = None
    energy_rejected: Tensor | None = None
    energies: int | Tensor = 0

    def after(self, other: Step, of: Tensor) -> Step:
        """The same step, with the evaluations of `other` counted as well for the systems in `of`."""
        evaluations, energies = self.evaluations + other.evaluations * of, self.energies + other.energies * of
        rejected = self.energy_rejected
        if rejected is not None and other.energy_rejected is not None:
            rejected = rejected + other.energy_rejected * of
        return dataclasses.replace(self, evaluations=evaluations, energies=energies, energy_rejected=rejected)


class Method(ABC):
    """One step of an ordinary differential equation.

    A subclass says what it is (`name`, `order`, `stages` and the capabilities below) and how to :meth:`step`. All
    methods are immutable: what changes from step to step is in the loop's state.
    """

    name: str
    order: int
    stages: int
    adaptive: bool = False
    implicit: bool = False
    dissipative: bool = False
    symplectic: bool = False
    # For methods that have an error estimate but are mostly used without it.
    fixed_by_default: bool = False

    @property
    def lands(self) -> bool:
        """Whether save times are stepped onto rather than interpolated.

        An interpolant keeps neither a dissipative method's promise nor a stiff method's damping.
        """
        return self.implicit or self.dissipative

    @property
    def error_order(self) -> int:
        """The exponent of the step size in the local error estimate, which controllers use."""
        return self.order

    @abstractmethod
    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        """Step every system from `t0` to `t1`, both `[S]`; a system with `t0 == t1` does not move.

        `f0` is the derivative at the start where known. `land` marks the systems that have to reach `t1` exactly,
        `None` meaning none; it concerns only methods that choose the time they reach.
        """

    def complete(self, term: Term, step: Step, kind: str | None = None) -> Step:
        """The step with everything that :meth:`interpolate` needs, which may take evaluations of the field."""
        if kind == "linear" or (kind is None and self._is_linear_inside(step)):
            return step
        f0 = term(step.t0, step.y0) if step.f0 is None else step.f0
        f1 = term(step.t1, step.y1) if step.f1 is None else step.f1
        return dataclasses.replace(step, f0=f0, f1=f1)

    def interpolate(self, step: Step, theta: Tensor, kind: str | None = None) -> Tensor:
        """The state inside a completed step, at `theta` in [0, 1] spread over the state.

        The `kind` is "linear", "cubic", or None for the way that is best for the method.
        """
        if kind == "linear" or (kind is None and self._is_linear_inside(step)):
            return interpolation.linear(theta, step.y0, step.y1)
        assert step.f0 is not None
        assert step.f1 is not None
        return interpolation.hermite(theta, step.y0, step.y1, step.h * step.f0, step.h * step.f1)

    def _is_linear_inside(self, step: Step) -> bool:
        return self.order == 1 or self.lands

    def __repr__(self) -> str:
        return f"<method {self.name}, order {self.order}>"


class LockstepMethod(Method):
    """A method whose systems may all share one step size, so that a plain loop over a time grid is enough."""

    nodes: tuple[float, ...]

    @abstractmethod
    def advance(
        self, term: Term, times: list[Tensor], h: Tensor | float, y: Tensor, f0: Tensor | None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        """The new state, what the next step gets as `f0`, and the stages, the derivative at the start first.

        `f0` is the derivative at the start of the step where the step before has it, or what a multistep method hands
        on: a tensor whose last dimensions are those of the state. `times` are the field's times at the `nodes`; `h` is
        a number, or a tensor that broadcasts against the state.
        """

    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        before = term.calls
        times = term.stage_times(term.systems.spread(t0), term.systems.spread(t1), self.nodes)
        h = term.systems.spread((t1 - t0).to(term.real_dtype))
        y1, f1, stages = self.advance(term, times, h, y0, f0)
        error = self.error(h, stages)
        first = stages[0] if stages else f0
        return Step(t0, t1, h, y0, y1, term.calls - before, error, first, f1, stages)

    def error(self, h: Tensor, stages: tuple[Tensor, ...]) -> Tensor | None:
        """The local error estimate, where the method has one."""
        return None


class Registry(Mapping[str, Method]):
    """The methods known by name; printing it gives a table."""

    def __init__(self) -> None:
        self._methods: dict[str, Method] = {}

    def add(self, method: Method, name: str | None = None, *, replace: bool = False) -> Method:
        if not isinstance(method, Method):
            raise TypeError(f"only a Method can be registered, got {type(method).__name__}")
        name = method.name if name is None else name
        if name in self._methods and not replace:
            raise ValueError(f"a method named {name!r} is registered already; pass replace=True to replace it")
        self._methods[name] = method
        return method

    def __getitem__(self, name: str) -> Method:
        return self._methods[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._methods)

    def __len__(self) -> int:
        return len(self._methods)

    def __str__(self) -> str:
        flags = ("adaptive", "implicit", "dissipative", "symplectic")
        rows: list[tuple[str, ...]] = [("name", "order", "stages", *flags)]
        for name, method in self._methods.items():
            marks = ("yes" if getattr(method, flag) else "-" for flag in flags)
            rows.append((name, str(method.order), str(method.stages), *marks))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join(lines)

    __repr__ = __str__


_REGISTRY = Registry()


def methods() -> Registry:
    """The registry of methods: a mapping from names to methods that prints as a table.

    >>> from solvers import methods
    >>> methods()["dopri5"].order
    5
    >>> sorted(name for name, method in methods().items() if method.dissipative)
    ['armijo_euler', 'discrete_gradient', 'relaxed_dopri5', 'relaxed_rk4']
    """
    return _REGISTRY


def register(method: Method, name: str | None = None, *, replace: bool = False) -> Method:
    """Add a method of your own to the registry, so that `solve` and `odeint` know it by name.

    >>> from solvers import ExplicitRK, Tableau, methods, register
    >>> ralston = Tableau(a=((2 / 3,),), b=(1 / 4, 3 / 4), order=2)
    >>> register(ExplicitRK("ralston", ralston))
    <method ralston, order 2>
    >>> methods()["ralston"].stages
    2
    """
    return _REGISTRY.add(method, name, replace=replace)


def find_method(method: str | Method) -> Method:
    """The method of this name, or the method itself."""
    if isinstance(method, Method):
        return method
    if method not in _REGISTRY:
        known = ", ".join(sorted(_REGISTRY))
        hint = did_you_mean(method, _REGISTRY)
        raise ValueError(f"unknown method {method!r}{hint}; known are: {known}. solvers.register adds your own")
    return _REGISTRY[method]


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """A hint at the known name that is most like a misspelt one, or nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
