"""Gated sums by `torch_scatter`, twice differentiable."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from .adjacency import unpack


def torch_scatter() -> Any:
    """The library of this name; where it is missing, an error that says how to install it."""
    try:
        import torch_scatter
    except (ImportError, OSError) as error:  # OSError: it was built against another torch
        raise ImportError(
            "the backend 'torch_scatter' needs the library of this name, built against the installed torch: "
            "pip install --no-build-isolation torch_scatter"
        ) from error
    return torch_scatter


def sums_by_torch_scatter(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    """With `segment_csr`, over the edges by target."""
    ptr, source, edge = (x.long() for x in unpack(edges, len(k)).by_target)
    z = _Spread.apply(k, ptr) + q[source]
    gate = torch.sigmoid(z if c is None else z + c[edge])
    num, den = _Sum.apply(torch.cat([gate * v[source], gate], 1), ptr).chunk(2, 1)
    return num, den


@final
class _Sum(torch.autograd.Function):
    """`segment_csr`. Its own backward leaves no graph, and second derivatives would be wrong without a word; it and
    `gather_csr` are each other's backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ptr: Tensor) -> Tensor:
        ctx.save_for_backward(ptr)
        return torch_scatter().segment_csr(x.contiguous(), ptr, reduce="sum")

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Spread.apply(g, *ctx.saved_tensors), None


@final
class _Spread(torch.autograd.Function):
    """`gather_csr`: a row for every edge."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, ptr: Tensor) -> Tensor:
        ctx.save_for_backward(ptr)
        return torch_scatter().gather_csr(x.contiguous(), ptr)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return _Sum.apply(g, *ctx.saved_tensors), None
