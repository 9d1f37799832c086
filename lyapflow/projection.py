"""Projections per system: the share of a direction along a gradient, and what is orthogonal to it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from solvers import Rows, Systems
from solvers.typing import PerSystem


def project(direction: Tensor, gradient: Tensor, systems: Systems | None = None) -> Tensor:
    r"""The part of a direction that is orthogonal to the gradient, in each system.

    .. math:: T = M - \frac{\langle M, g \rangle}{\langle g, g \rangle} g, \qquad T = M \text{ where } g = 0.

    Orthogonal to rounding: it is done twice, since in one pass the rounding error of the first part remains. Only the
    gradient's direction counts: it is brought to the scale of 1 first, so that no square under- or overflows, and it
    counts as zero only where all its entries are, or are too small to have the precision of the type. Half precision
    is computed in float32.

    Args:
        direction: M, like the state.
        gradient: g, like the state.
        systems: How the state is divided, by default into its rows.

    >>> import torch
    >>> from lyapflow import project
    >>> M, g = torch.tensor([[1.0, 2.0], [1.0, 2.0]]), torch.tensor([[0.0, 1e-30], [0.0, 0.0]])
    >>> project(M, g)
    tensor([[1., 0.],
            [1., 2.]])
    """
    check_alike("gradient", gradient, "direction", direction)
    bound = (Rows() if systems is None else systems).bind(direction)
    tangent = bound.orthogonal(at_least_single(direction), at_least_single(gradient))
    return tangent.to(direction.dtype)


def share_along(direction: Tensor, gradient: Tensor, systems: Systems) -> PerSystem:
    """<M, g> / <g, g> in each system, 0 where g = 0."""
    unit, square, scale = systems.at_scale_one(gradient)
    return systems.inner(direction, unit) / square / scale


def at_least_single(x: Tensor) -> Tensor:
    """In half precision the square of a gradient underflows: such a tensor is taken to float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def check_alike(name: str, x: Any, other: str, y: Any) -> None:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        wrong = name if not isinstance(x, Tensor) else other
        raise TypeError(f"{wrong} must be a tensor, got {type(x if wrong == name else y).__name__}")
    if x.shape != y.shape or x.device != y.device:
        raise ValueError(
            f"{name} and {other} must be alike, got shapes {list(x.shape)} and {list(y.shape)}, "
            f"on {x.device} and {y.device}"
        )
