"""Fields as a vector space: sums, multiples, and gates in time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from solvers import Systems
from solvers.typing import PerSystem

Gate = Callable[[Any], Any]
VectorField = Callable[[Any, Tensor], Tensor]


class Field(nn.Module):
    """A field `f(t, h)` that can be added to others, multiplied by a number, and gated in time.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic
    >>> bowl = LyapunovField(Quadratic([1.0, 1.0]))
    >>> field = 2 * bowl + (lambda t, h: torch.ones_like(h))
    >>> field(0.0, torch.ones(1, 2))
    tensor([[-1., -1.]])
    """

    def __add__(self, other: Any) -> Combination:
        return combine((self, 1.0), (other, 1.0)) if callable(other) else NotImplemented

    def __radd__(self, other: Any) -> Combination:
        return combine((other, 1.0), (self, 1.0)) if callable(other) else NotImplemented

    def __sub__(self, other: Any) -> Combination:
        return combine((self, 1.0), (other, -1.0)) if callable(other) else NotImplemented

    def __mul__(self, number: Any) -> Combination:
        return combine((self, float(number))) if isinstance(number, (int, float)) else NotImplemented

    __rmul__ = __mul__

    def __neg__(self) -> Combination:
        return combine((self, -1.0))

    def gated(self, gate: Gate) -> Combination:
        """The field times `gate(t)`, cut off at zero: time runs slower, or stands still, but never back.

        >>> import torch
        >>> from lyapflow import LyapunovField, Quadratic, Window
        >>> field = LyapunovField(Quadratic([1.0, 1.0])).gated(Window(0.0, 1.0))
        >>> [float(field(t, torch.ones(1, 2)).norm()) for t in (0.0, 1.5)]
        [1.4142135381698608, 0.0]
        """
        if not callable(gate):
            raise TypeError(f"gate must be a function of time, got {type(gate).__name__}")
        return combine((self, gate))


@final
class Combination(Field):
    """A sum of fields, each times a number or a gate in time. Made by the operators of :class:`Field`.

    It has an energy, and so is a Lyapunov field itself, if all its fields have the same one, over the same systems,
    and no factor is negative. Otherwise nothing can be promised, and there is no `energy`: dissipative methods refuse
    it.

    >>> from lyapflow import DoubleWell, LyapunovField, Quadratic
    >>> well = DoubleWell()
    >>> a, b, c = LyapunovField(well), LyapunovField(well, alpha=0.5), LyapunovField(Quadratic([1.0, 1.0]))
    >>> hasattr(a + 2 * b, "energy"), hasattr(a - b, "energy"), hasattr(a + c, "energy")
    (True, False, False)
    """

    def __init__(self, fields: Sequence[VectorField], factors: Sequence[float | Gate]) -> None:
        super().__init__()
        self.components = nn.ModuleList(part for part in (*fields, *factors) if isinstance(part, nn.Module))
        self.terms = list(zip(fields, factors, strict=True))
        divisions = [systems for field in fields if (systems := getattr(field, "systems", None)) is not None]
        if any(not same_systems(divisions[0], other) for other in divisions[1:]):
            raise ValueError("fields can be added only over the same systems; give all of them the same systems=")
        if divisions:
            self.systems: Systems = divisions[0]

    def forward(self, t: float | Tensor, h: Tensor) -> Tensor:
        total: Tensor | None = None
        for field, factor in self.terms:
            value = field(t, h) * (factor if isinstance(factor, float) else _opened(factor, t, h))
            total = value if total is None else total + value
        assert total is not None
        return total

    @property
    def energy(self) -> Callable[[Any, Tensor], PerSystem]:
        """`energy(t, h) -> [S]`, where there is one."""
        first: Any = self.terms[0][0]
        if self._has_energy():
            return first.energy
        raise AttributeError("this combination of fields has no energy that is sure not to grow")

    def _has_energy(self) -> bool:
        if any(isinstance(factor, float) and factor < 0 for _, factor in self.terms):
            return False
        keys = {_energy_key(field) for field, _ in self.terms}
        return len(keys) == 1 and None not in keys


def combine(*terms: tuple[VectorField, float | Gate]) -> Combination:
    """A combination; sums of sums and multiples of multiples become one."""
    flat: list[tuple[VectorField, float | Gate]] = []
    for field, factor in terms:
        if isinstance(field, Combination) and isinstance(factor, float):
            numbers = [own for _, own in field.terms if isinstance(own, float)]
            if factor == 1.0:
                flat += field.terms
                continue
            if len(numbers) == len(field.terms):
                flat += [(part, factor * own) for (part, _), own in zip(field.terms, numbers, strict=True)]
                continue
        flat.append((field, factor))
    return Combination([field for field, _ in flat], [factor for _, factor in flat])


@final
class Window:
    """A gate in time: 1 between `start` and `end`, 0 outside, with linear ramps inside where `ramp` is positive.

    >>> from lyapflow import Window
    >>> [float(Window(1.0, 3.0, ramp=0.5)(t)) for t in (0.9, 1.25, 2.0, 3.0)]
    [0.0, 0.5, 1.0, 0.0]
    """

    def __init__(self, start: float, end: float, ramp: float = 0.0) -> None:
        if not start < end:
            raise ValueError(f"a window must end after it starts, got {start} to {end}")
        if not 0 <= 2 * ramp <= end - start:
            raise ValueError(f"ramp must lie between 0 and half of the window, got {ramp}")
        self.start, self.end, self.ramp = start, end, ramp

    def __call__(self, t: float | Tensor) -> Tensor:
        time = torch.as_tensor(t)
        if self.ramp == 0:
            return ((time >= self.start) & (time < self.end)).to(torch.get_default_dtype())
        return (torch.minimum(time - self.start, self.end - time) / self.ramp).clamp(0, 1)

    def __repr__(self) -> str:
        return f"Window({self.start}, {self.end}, ramp={self.ramp})"


def _opened(gate: Gate, t: float | Tensor, h: Tensor) -> Tensor:
    return torch.as_tensor(gate(t), dtype=h.dtype, device=h.device).clamp(min=0)


def same_systems(a: Systems, b: Systems) -> bool:
    return a is b or (type(a) is type(b) and a == b)


def _energy_key(field: Any) -> int | None:
    """Something that two fields have in common exactly if they have the same energy."""
    if isinstance(field, Combination):
        return _energy_key(field.terms[0][0]) if field._has_energy() else None
    module = getattr(field, "energy_module", None)
    # The same energy taken over to other systems is a copy that shares the dictionary of parameters.
    return None if module is None else id(module._parameters)
