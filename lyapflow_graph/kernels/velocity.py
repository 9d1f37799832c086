"""Down the gradient of an energy and along what is orthogonal to it, graph by graph, in one go."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from solvers import Systems

from . import cpu
from .gated import has_kernel
from .operators import backward_again


def velocity(
    direction: Tensor, gradient: Tensor, alpha: Tensor, beta: Tensor, systems: Systems, index: Tensor | None
) -> Tensor | None:
    """What :meth:`solvers.Systems.combine` gives, by kernels; None where there are none for such tensors.

    Args:
        direction: `[n, d]`.
        gradient: `[n, d]`.
        alpha: `[S]`.
        beta: `[S]`.
        systems: How the rows are divided.
        index: `[n]`, the system of every row, or None for one system.
    """
    tensors = direction, gradient, alpha, beta
    if not (has_kernel(gradient) and cpu.fits(gradient)) or torch.compiler.is_compiling() or gradient.ndim != 2:
        return None
    if any(x.dtype != gradient.dtype or x.device != gradient.device for x in tensors):
        return None
    return _Velocity.apply(*tensors, systems, index)


@final
class _Velocity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *tensors, systems, index = given
        direction, gradient, alpha, beta = (cpu.in_rows(x) for x in tensors)
        found, shares = cpu.velocity(direction, gradient, alpha, beta, index)
        ctx.save_for_backward(*tensors, shares)
        ctx.systems, ctx.index = systems, index
        return found

    @staticmethod
    def backward(ctx: Any, along: Tensor) -> Any:
        *tensors, shares = ctx.saved_tensors
        if torch.is_grad_enabled():

            def plain(direction: Tensor, gradient: Tensor, alpha: Tensor, beta: Tensor) -> tuple[Tensor]:
                return (Systems.combine(ctx.systems, direction, gradient, alpha, beta),)

            return *backward_again(plain, tensors, [along]), None, None
        direction, gradient, alpha, beta = (cpu.in_rows(x) for x in tensors)
        found = cpu.velocity_backward(direction, gradient, alpha, beta, ctx.index, shares, cpu.in_rows(along))
        return *found, None, None
