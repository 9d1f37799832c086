"""How gradients flow back through an integration."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from torch import Tensor
from torch.utils.checkpoint import checkpoint


class Adjoint(ABC):
    """A way to differentiate an integration. It runs as segments of steps, which an adjoint may treat apart."""

    @abstractmethod
    def segment_lengths(self) -> Iterator[int]:
        """How many steps each segment has, as long as there are steps."""

    @abstractmethod
    def run(self, segment: Callable[..., Any], *inputs: Any) -> Any:
        """Run one segment, a pure function."""


@final
@dataclasses.dataclass(frozen=True)
class Direct(Adjoint):
    """Backpropagation through every step: exact gradients of the numbers computed, memory for every step."""

    def segment_lengths(self) -> Iterator[int]:
        return itertools.repeat(sys.maxsize)

    def run(self, segment: Callable[..., Any], *inputs: Any) -> Any:
        return segment(*inputs)


@final
@dataclasses.dataclass(frozen=True)
class Checkpointed(Adjoint):
    """The gradients of :class:`Direct` at one more forward pass, with memory like the square root of the steps.

    Segments of 1, 2, 3, ... steps are computed again when gradients flow back: after N steps there are about
    sqrt(2 N) segments and none is longer than that, without knowing N beforehand.

    Args:
        every: Segments of this many steps instead. 1 is best where what a step records is far larger than a state, as
            with networks of several layers.

    >>> import torch
    >>> from solvers import Checkpointed, solve
    >>> y0 = torch.ones(2, requires_grad=True)
    >>> solution = solve(lambda t, y: -y, y0, 0.0, 1.0, method="euler", dt0=0.01, adjoint=Checkpointed())
    >>> torch.autograd.grad(solution.y1.sum(), y0)[0]
    tensor([0.3660, 0.3660])
    """

    every: int | None = None

    def __post_init__(self) -> None:
        if self.every is not None and self.every < 1:
            raise ValueError(f"every must be a positive number of steps, got {self.every}")

    def segment_lengths(self) -> Iterator[int]:
        return itertools.count(1) if self.every is None else itertools.repeat(self.every)

    def run(self, segment: Callable[..., Any], *inputs: Any) -> Any:
        return checkpoint(segment, *inputs, use_reentrant=False)


@final
@dataclasses.dataclass(frozen=True)
class Backsolve(Adjoint):
    """Gradients by solving the adjoint equation backward in time: constant memory, not exact.

    The state is computed again backward, which is unstable for strongly contracting fields; prefer
    :class:`Checkpointed` unless memory is very scarce.

    Args:
        params: The tensors that get gradients; by default the parameters of the field, if it is a module.
        method: The method of the backward solve; that of the forward solve by default.
        rtol: Tolerances of the backward solve; those of the forward solve by default.
        atol: Likewise.
        dt0: First or fixed step of the backward solve; that of the forward solve by default.
    """

    params: Iterable[Tensor] | None = None
    method: str | None = None
    rtol: float | None = None
    atol: float | None = None
    dt0: float | None = None

    # Forward it is like Direct; `solve` runs it without recording and attaches the backward solve.
    def segment_lengths(self) -> Iterator[int]:
        return itertools.repeat(sys.maxsize)

    def run(self, segment: Callable[..., Any], *inputs: Any) -> Any:
        return segment(*inputs)
