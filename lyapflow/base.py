"""What a Lyapunov field is made of, in the abstract: an energy, a tangent, coefficients.

All of them are modules that know the systems of their state. What they want beside the state they name in `takes`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from solvers import Rows, Single, Systems
from solvers.autograd import fresh, recording
from solvers.typing import PerSystem

This = TypeVar("This")


class SystemModule(nn.Module):
    """A module whose state is divided into independent systems, by default the rows of a batch.

    Attributes:
        systems: How the state is divided.
        takes: Names of what `forward` gets beside the state `h`, as keyword arguments. There are `t` (the time, in a
            shape that broadcasts against the state), `features` (of the energy for `alpha`, of the tangent for
            `beta`), `energy` (`[S]`), `gradient`, and `direction`; each is known only to what is evaluated later.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, Tangent
    >>> class Ramp(Tangent):
    ...     takes = ("t",)
    ...     def forward(self, h, t):
    ...         return t * torch.ones_like(h)
    >>> field = LyapunovField(Quadratic([1.0, 1.0]), Ramp())
    >>> field(3.0, torch.tensor([[1.0, -1.0]]))
    tensor([[2., 4.]])
    """

    systems: Systems = Rows()
    takes: tuple[str, ...] = ()

    def __init__(self, systems: Systems | None = None) -> None:
        super().__init__()
        if systems is not None:
            self.systems = checked_systems(systems)

    def bind(self: This, systems: Systems) -> This:
        """The same module, with the same parameters, for another division of the state.

        >>> import torch
        >>> from lyapflow import DoubleWell, Segments
        >>> energy = DoubleWell().bind(Segments(torch.tensor([0, 0, 1]), 2))
        >>> energy(torch.zeros(3, 2))
        tensor([0.5000, 0.2500])
        """
        return _bound(self, checked_systems(systems))


def checked_systems(systems: Any) -> Systems:
    if not isinstance(systems, Systems):
        raise TypeError(f"systems must be Single(), Rows() or Segments(index, count), got {type(systems).__name__}")
    return systems


def _bound(module: Any, systems: Systems) -> Any:
    if not any(isinstance(part, SystemModule) for part in module.modules()):
        return module
    twin = copy.copy(module)  # shares the dictionary of parameters
    twin._modules = {name: child and _bound(child, systems) for name, child in module._modules.items()}
    if isinstance(twin, SystemModule):
        twin.systems = systems
    return twin


class Energy(SystemModule, ABC):
    """A scalar for every system: `forward(h) -> [S]`, twice differentiable in the state.

    It has to be a function of the state: no dropout, no batch normalisation, nothing that changes from call to call
    or couples two systems.

    >>> import torch
    >>> from lyapflow import Energy, LyapunovField
    >>> class Bowl(Energy):
    ...     def forward(self, h):
    ...         return h.square().sum(-1) / 2
    >>> LyapunovField(Bowl())(0.0, torch.tensor([[1.0, 2.0]]))
    tensor([[-1., -2.]])
    """

    @abstractmethod
    def forward(self, h: Tensor) -> PerSystem:
        """The energy of each system, `[S]`."""

    def value_and_features(self, h: Tensor, **taken: Any) -> tuple[PerSystem, Tensor]:
        """The energy, and what a coefficient that takes `features` is given: by default the state.

        A network that has something better at hand, as its last hidden layer, returns that.
        """
        return self(h, **taken), h

    def with_gradient(self, h: Tensor, **taken: Any) -> tuple[PerSystem, Tensor, Tensor] | None:
        """The energy, its features and its gradient in the state, from an energy that has a shorter way to them.

        All three have to be differentiable wherever gradients are recorded. By default None: the gradient is found by
        automatic differentiation.
        """
        return None


class PointwiseEnergy(Energy):
    """An energy that is a sum over the points of a system, where the last dimension of the state is a point's.

    So the same energy serves a batch of rows, graphs of many nodes, and a single state.

    >>> import torch
    >>> from lyapflow import PointwiseEnergy, Single
    >>> class Bowl(PointwiseEnergy):
    ...     def density(self, h):
    ...         return h.square().sum(-1) / 2
    >>> Bowl()(torch.ones(3, 2)), Bowl().bind(Single())(torch.ones(3, 2))
    (tensor([1., 1., 1.]), tensor([3.]))
    """

    @abstractmethod
    def density(self, h: Tensor) -> Tensor:
        """The energy of every point: `[..., d]` to `[...]`."""

    def forward(self, h: Tensor) -> PerSystem:
        if h.ndim < 2 and not (h.ndim == 1 and isinstance(self.systems, Single)):
            name, shape = type(self).__name__, list(h.shape)
            raise ValueError(
                f"{name} needs a state of shape [..., d] with a point in its last dimension, divided along its first "
                f"one; got {shape}. For a single point of shape [d] use systems=Single()"
            )
        return self.systems.total(self.density(h))


class Tangent(SystemModule, ABC):
    """A direction for the state to move in: `forward(h) -> like h`. The field makes it orthogonal to the gradient.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, Tangent
    >>> class East(Tangent):
    ...     def forward(self, h):
    ...         return torch.ones_like(h) * torch.tensor([1.0, 0.0])
    >>> field = LyapunovField(Quadratic([1.0, 1.0]), East(), alpha=0.0)
    >>> field(0.0, torch.tensor([[0.0, 2.0], [2.0, 0.0]]))  # east of a gradient to the north; nothing else to the east
    tensor([[1., 0.],
            [0., 0.]])
    """

    @abstractmethod
    def forward(self, h: Tensor) -> Tensor:
        """The direction, like the state."""

    def direction_and_features(self, h: Tensor, **taken: Any) -> tuple[Tensor, Tensor]:
        """The direction, and what a coefficient that takes `features` is given: by default the direction."""
        direction = self(h, **taken)
        return direction, direction


class Coefficient(SystemModule, ABC):
    """A value for every system, to scale a part of the field with: `forward(h) -> [S]`.

    >>> import torch
    >>> from lyapflow import Coefficient, LyapunovField, Quadratic
    >>> class Cautious(Coefficient):
    ...     def forward(self, h):
    ...         return 1 / (1 + h.square().sum(-1))
    >>> LyapunovField(Quadratic([1.0]), alpha=Cautious())(0.0, torch.tensor([[1.0], [3.0]]))
    tensor([[-0.5000],
            [-0.3000]])
    """

    @abstractmethod
    def forward(self, h: Tensor) -> PerSystem:
        """The coefficient of each system, `[S]`."""


class _OfFunction(SystemModule):
    """Any callable as a component."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, h: Tensor) -> Tensor:
        return self.function(h)


@final
class FunctionEnergy(_OfFunction, Energy):
    """Any callable as an energy."""


@final
class FunctionTangent(_OfFunction, Tangent):
    """Any callable as a tangent."""


@final
class FunctionCoefficient(_OfFunction, Coefficient):
    """Any callable as a coefficient."""


def call(module: SystemModule, h: Tensor, known: dict[str, Any]) -> Any:
    """Call a component with what it takes."""
    return module(h, **taken_by(module, known))


def taken_by(module: SystemModule, known: dict[str, Any]) -> dict[str, Any]:
    if not module.takes:
        return {}
    unknown = [name for name in module.takes if name not in known]
    if unknown:
        raise TypeError(f"{type(module).__name__} takes {unknown[0]!r}, but only {sorted(known)} are known to it")
    return {name: known[name] for name in module.takes}


class Slope:
    """An energy, its gradient in the state, and its features, at one state.

    They are differentiable further if gradients were being recorded when it was made, whatever the mode of the
    module; and they can be had under `torch.no_grad()` and `torch.inference_mode()` all the same.
    """

    __slots__ = ("energy", "features", "gradient")

    def __init__(self, energy: Energy, h: Tensor, known: dict[str, Any]) -> None:
        found = energy.with_gradient(h, **taken_by(energy, known))
        if found is not None:
            self.energy, self.features, self.gradient = found
            return
        enabled = torch.is_grad_enabled()
        through_state = enabled and h.requires_grad
        with recording():
            point = h if through_state else fresh(h)
            value, features = energy.value_and_features(point, **taken_by(energy, known))
            record = through_state or (enabled and has_another_leaf(value, point))
            if value.requires_grad:
                ones = torch.ones_like(value)  # systems are independent: a sum would add a node to the graph, no more
                (gradient,) = torch.autograd.grad(value, point, ones, create_graph=record, allow_unused=True)
            if not value.requires_grad or gradient is None:  # a constant
                gradient = torch.zeros_like(h)
        if not record:
            value = value.detach()
            features = h if features is point else features.detach()
        self.energy, self.features, self.gradient = value, features, gradient


def has_another_leaf(value: Tensor, point: Tensor) -> bool:
    """Whether anything but `point` that `value` was computed from wants a gradient.

    If not, nothing is recorded: what comes out would otherwise require a gradient although nothing that went in did.
    """
    if torch.compiler.is_compiling():
        return True
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not point:
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False
