"""Which entries of a state tensor belong together.

A state holds many independent *systems*: the rows of a mini-batch, the node blocks of the graphs in a batch, or one
single system. Everything that is "per system" (energies, projections, error norms, step sizes, statuses) is written
once, on the few operations of :class:`Systems`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import final

import torch
from torch import Tensor

from .typing import Int, PerSystem


class Systems(ABC):
    """How a state tensor is divided into independent systems.

    The number of systems and the way back from a value per system to the state depend on the state's shape, so they
    are known only after :meth:`bind`; :meth:`total` and :meth:`inner` work on any tensor laid out like the state.

    >>> import torch
    >>> for systems in (Single(), Rows(), Segments(torch.tensor([0, 0, 1]), 2)):
    ...     print(systems.total(torch.ones(3, 2)))
    tensor([6.])
    tensor([2., 2., 2.])
    tensor([4., 2.])
    """

    @abstractmethod
    def bind(self, state: Tensor) -> Systems:
        """The same division, checked against `state` and knowing its shape. Idempotent."""

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of systems, S."""

    @property
    @abstractmethod
    def sizes(self) -> PerSystem:
        """How many entries of the state each system has."""

    @abstractmethod
    def total(self, x: Tensor) -> Tensor:
        """The sum of the entries of each system: a tensor like the state to `[S]`."""

    @abstractmethod
    def spread(self, x: Tensor) -> Tensor:
        """A value per system, `[S]`, in a shape that broadcasts against the state."""

    @abstractmethod
    def largest(self, x: Tensor) -> PerSystem:
        """The largest absolute value among the entries of each system, `[S]`; 0 where it has none."""

    def inner(self, u: Tensor, v: Tensor) -> PerSystem:
        """The real inner product of each system, `[S]`."""
        if u.is_complex() or v.is_complex():
            return self.total((u.conj() * v).real)
        return self.total(u * v)

    def at_scale_one(self, gradient: Tensor) -> tuple[Tensor, PerSystem, PerSystem]:
        """The gradient with its largest entry made 1 in each system, its square there (1 where it is zero), the scale.

        A projection does not depend on the scale, so none of its derivatives goes through it.
        """
        scale = self.largest(gradient.detach())
        scale = torch.where(scale < torch.finfo(gradient.dtype).tiny, float("inf"), scale)
        unit = gradient / self.spread(scale)
        # With an entry of 1 the square is at least 1; of a gradient of zero it becomes 1.
        return unit, self.inner(unit, unit).clamp(min=1), scale

    def orthogonal(self, direction: Tensor, gradient: Tensor) -> Tensor:
        """The part of a direction that is orthogonal to the gradient in each system; all of it where that is zero."""
        unit, square, _ = self.at_scale_one(gradient)
        for _ in range(2):  # in one pass the rounding error of the first part remains
            share = self.inner(direction, unit) / square
            direction = torch.addcmul(direction, self.spread(share), unit, value=-1)
        return direction

    def weigh(self, descent: Tensor, tangent: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
        """`-alpha descent + beta tangent`, with numbers or values per system."""
        down = descent * -(self.spread(alpha) if isinstance(alpha, Tensor) else alpha)
        if isinstance(beta, Tensor):
            return torch.addcmul(down, tangent, self.spread(beta))
        return torch.add(down, tangent, alpha=beta)

    def combine(self, direction: Tensor, gradient: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
        """`-alpha gradient + beta T` with T the :meth:`orthogonal` part of the direction.

        Systems with a faster way override it.
        """
        return self.weigh(gradient, self.orthogonal(direction, gradient), alpha, beta)


def _need_binding(systems: Systems) -> ValueError:
    return ValueError(f"{systems!r} does not know the state's shape yet: call .bind(state) first")


def _sum_of_rows(x: Tensor) -> Tensor:
    if x.ndim == 2:
        return x.sum(1)
    return x if x.ndim == 1 else x.flatten(1).sum(1)


def _largest_of_rows(x: Tensor) -> Tensor:
    if x.ndim == 1:
        return x.abs()
    flat = x if x.ndim == 2 else x.flatten(1)
    return flat.abs().amax(1) if x.numel() else x.real.new_zeros(x.shape[0])


@final
@dataclasses.dataclass(frozen=True)
class Single(Systems):
    """The whole tensor is one system.

    >>> import torch
    >>> systems = Single().bind(torch.zeros(2, 3))
    >>> systems.count, systems.inner(torch.ones(2, 3), torch.ones(2, 3))
    (1, tensor([6.]))
    """

    numel: int | None = None
    device: torch.device | None = None

    def bind(self, state: Tensor) -> Single:
        return Single(state.numel(), state.device)

    @property
    def count(self) -> int:
        return 1

    @property
    def sizes(self) -> PerSystem:
        if self.numel is None:
            raise _need_binding(self)
        return torch.full((1,), float(self.numel), device=self.device)

    def total(self, x: Tensor) -> Tensor:
        return x.sum().reshape(1)

    def largest(self, x: Tensor) -> PerSystem:
        return x.abs().amax().reshape(1) if x.numel() else x.real.new_zeros(1)

    def spread(self, x: Tensor) -> Tensor:
        return x.reshape(())


@final
@dataclasses.dataclass(frozen=True)
class Rows(Systems):
    """Every index of dimension 0 is one system.

    >>> import torch
    >>> systems = Rows().bind(torch.zeros(2, 3))
    >>> systems.count, systems.inner(torch.ones(2, 3), torch.ones(2, 3))
    (2, tensor([3., 3.]))
    >>> systems.spread(torch.tensor([1.0, 2.0])).shape
    torch.Size([2, 1])
    """

    shape: torch.Size | None = None
    device: torch.device | None = None

    def bind(self, state: Tensor) -> Rows:
        if state.ndim == 0:
            raise ValueError("systems=Rows() needs a state of at least one dimension, got a scalar; use Single()")
        if self.shape is not None and self.shape[0] != state.shape[0]:
            raise ValueError(f"systems was bound to {self.shape[0]} rows, but the state has {state.shape[0]}")
        return Rows(state.shape, state.device)

    @property
    def count(self) -> int:
        if self.shape is None:
            raise _need_binding(self)
        return self.shape[0]

    @property
    def sizes(self) -> PerSystem:
        if self.shape is None:
            raise _need_binding(self)
        return torch.full((self.shape[0],), float(self.shape[1:].numel()), device=self.device)

    def total(self, x: Tensor) -> Tensor:
        return _sum_of_rows(x)

    def largest(self, x: Tensor) -> PerSystem:
        return _largest_of_rows(x)

    def spread(self, x: Tensor) -> Tensor:
        if self.shape is None:
            raise _need_binding(self)
        return x.reshape(-1, *(1,) * (len(self.shape) - 1))


@final
@dataclasses.dataclass(frozen=True, eq=False)
class Segments(Systems):
    """Rows of dimension 0 grouped by `index`, as PyTorch Geometric's `batch` does: row i belongs to system `index[i]`.

    The index need not be sorted, and a system may have no rows at all.

    >>> import torch
    >>> systems = Segments(torch.tensor([0, 0, 1]), 2).bind(torch.zeros(3, 2))
    >>> systems.inner(torch.ones(3, 2), torch.ones(3, 2))
    tensor([4., 2.])
    """

    index: Int[Tensor, " n"]
    number: int
    shape: torch.Size | None = None

    def __init__(self, index: Tensor, count: int | None = None, shape: torch.Size | None = None) -> None:
        if index.ndim != 1 or index.dtype not in (torch.int64, torch.int32):
            kind = f"{index.dtype} of shape {list(index.shape)}"
            raise ValueError(f"Segments: index must be a one-dimensional integer tensor, got {kind}")
        if count is None or shape is None:  # a bound copy was checked when it was made
            low, high = (int(index.min()), int(index.max())) if index.numel() else (0, -1)
            count = high + 1 if count is None else count
            if low < 0 or high >= count:
                raise ValueError(f"Segments: index must lie in 0..{count - 1} (count={count}), got {low}..{high}")
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "number", count)
        object.__setattr__(self, "shape", shape)

    def bind(self, state: Tensor) -> Segments:
        if state.ndim == 0 or state.shape[0] != self.index.shape[0]:
            rows = "a scalar" if state.ndim == 0 else f"{state.shape[0]} rows"
            raise ValueError(f"Segments: index has {self.index.shape[0]} entries, but the state is {rows}")
        if state.device != self.index.device:
            raise ValueError(f"Segments: index is on {self.index.device}, but the state is on {state.device}")
        ordinary = self.index.is_inference() and not torch.is_inference_mode_enabled()
        return Segments(self.index.clone() if ordinary else self.index, self.number, state.shape)

    @property
    def count(self) -> int:
        return self.number

    @property
    def sizes(self) -> PerSystem:
        if self.shape is None:
            raise _need_binding(self)
        rows = torch.bincount(self.index, minlength=self.number)
        return rows.to(torch.get_default_dtype()) * self.shape[1:].numel()

    def total(self, x: Tensor) -> Tensor:
        # Row by row first, then the rows in their order: a system sums alike alone and in any batch.
        rows = _sum_of_rows(x)
        return rows.new_zeros(self.number).index_add(0, self.index, rows)

    def largest(self, x: Tensor) -> PerSystem:
        rows = _largest_of_rows(x)
        return rows.new_zeros(self.number).scatter_reduce(0, self.index.long(), rows, "amax")

    def spread(self, x: Tensor) -> Tensor:
        if self.shape is None:
            raise _need_binding(self)
        return x[self.index].reshape(-1, *(1,) * (len(self.shape) - 1))
