"""The operators of a gated layer: sums over neighbours, and what a node makes of its sums."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Literal, final, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import cpu, cuda
from .adjacency import count_edges, ends
from .libraries import sums_by_torch_scatter, torch_scatter
from .operators import Operator

Backend = Literal["auto", "reference", "torch_scatter"]
CLOSED = 1e-6  # keeps the shares finite where all gates of a node are closed
EPSILON = 1e-5  # of the normalisation
_chosen: Backend = "auto"


@contextlib.contextmanager
def kernel_backend(name: Backend) -> Iterator[None]:
    """Choose who computes the operators of this package, for a while.

    Args:
        name: "auto" for the kernels of a device where there are some; "reference" for plain torch, on any device;
            "torch_scatter" for :func:`gated_sums` by its `segment_csr`, the others by plain torch.

    >>> from lyapflow_graph.kernels import kernel_backend
    >>> with kernel_backend("reference"):
    ...     pass
    """
    global _chosen
    if name not in get_args(Backend):
        raise ValueError(f"the backend must be one of {', '.join(get_args(Backend))}, got {name!r}")
    if name == "torch_scatter":
        torch_scatter()
    before, _chosen = _chosen, name
    try:
        yield
    finally:
        _chosen = before


def gated_sums(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    r"""Sums over the neighbours of every node, each with a gate of its own in every channel.

    .. math::
        s_{ij} = \mathrm{sigmoid}(k_i + q_j + c_{ij}), \qquad
        \mathrm{num}_i = \sum_{j \to i} s_{ij} \odot v_j, \qquad \mathrm{den}_i = \sum_{j \to i} s_{ij}.

    Nothing of the size `[E, d]` is made on the way, forward or backward, except for c and its own derivative. Every
    sum runs over the edges of a node in a fixed order: results do not change from run to run, nor with the number of
    threads.

    Args:
        k: `[n, d]`, of the targets.
        q: `[n, d]`, of the sources.
        v: `[n, d]`, of the sources.
        c: `[E, d]`, of the edges in the order of `edge_index`, or None.
        edges: The edges in two orders, :attr:`GraphBatch.packed_edges`.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch
    >>> from lyapflow_graph.kernels import gated_sums
    >>> path = GraphBatch(torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    >>> zeros, v = torch.zeros(3, 1), torch.tensor([[2.0], [4.0], [6.0]])
    >>> num, den = gated_sums(zeros, zeros, v, None, path.packed_edges)
    >>> num.flatten(), den.flatten()
    (tensor([0., 1., 2.]), tensor([0.0000, 0.5000, 0.5000]))
    """
    _check_shapes(k.shape, q=q, v=v)
    if c is not None:
        _check_shapes((count_edges(edges, k.shape[0]), *k.shape[1:]), c=c)
    if k.dtype in (torch.float16, torch.bfloat16):
        # A sum over many neighbours would lose the last of them.
        wide = gated_sums(k.float(), q.float(), v.float(), None if c is None else c.float(), edges)
        return wide[0].to(v.dtype), wide[1].to(v.dtype)
    if has_kernel(k, q, v, c):
        return _SUMS(k, q, v, c, edges)
    by_library = _chosen == "torch_scatter" and not _transformed()
    return (sums_by_torch_scatter if by_library else _plain_sums)(k, q, v, c, edges)


def gated_update(own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""What a node makes of its sums: :math:`\mathrm{silu}(\mathrm{norm}(\mathrm{own} + \mathrm{num} / (\mathrm{den} +
    10^{-6})))`, with a normalisation of each row.

    Args:
        own: `[n, d]`.
        num: `[n, d]`.
        den: `[n, d]`.
        weight: `[d]`, of the normalisation.
        bias: `[d]`, likewise.

    >>> import torch
    >>> from lyapflow_graph.kernels import gated_update
    >>> gated_update(torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4), torch.ones(4), torch.zeros(4)).shape
    torch.Size([3, 4])
    """
    _check_shapes(own.shape, num=num, den=den)
    _check_shapes(own.shape[1:], weight=weight, bias=bias)
    given = own, num, den, weight, bias
    return _UPDATE(*given) if has_kernel(*given) else _plain_update(*given)[0]


def silu(x: Tensor) -> Tensor:
    """`x * sigmoid(x)`; torch's own is put together from many operations where it is differentiated twice.

    >>> import torch
    >>> from lyapflow_graph.kernels import silu
    >>> silu(torch.tensor([0.0, 1.0]))
    tensor([0.0000, 0.7311])
    """
    return _SILU(x) if has_kernel(x) else F.silu(x)


def row_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Every row with its mean taken away and divided by its standard deviation, times `weight`, plus `bias`.

    torch's own layer norm is silently wrong from the third derivative on (pytorch/pytorch#175754): its statistics are
    saved as constants. A field holds the gradient of its energy, so its second derivative is a third one.

    Args:
        x: `[..., d]`.
        weight: `[d]`.
        bias: `[d]`.

    >>> import torch
    >>> from lyapflow_graph.kernels import row_norm
    >>> row_norm(torch.tensor([[1.0, 3.0]]), torch.ones(2), torch.zeros(2))
    tensor([[-1.0000,  1.0000]])
    """
    _check_shapes(x.shape[-1:], weight=weight, bias=bias)
    if x.ndim == 2 and cpu.fits(x) and has_kernel(x, weight, bias):
        return _NORM(x, weight, bias)
    return _plain_norm(x, weight, bias)[0]


@final
class SiLU(nn.SiLU):
    """:func:`silu` as a module."""

    def forward(self, input: Tensor) -> Tensor:
        return silu(input)


def with_kernels(module: nn.Module) -> nn.Module:
    """The module with :class:`SiLU` in place of torch's, wherever it is in it."""
    if type(module) is nn.SiLU:
        return SiLU()
    for name, child in module.named_children():
        setattr(module, name, with_kernels(child))
    return module


def has_kernel(x: Tensor, *others: Tensor | None) -> bool:
    """Whether operators on such tensors are computed by kernels."""
    return (cpu.fits(x) or cuda.fits(x)) and in_operators(x, *others)


def in_operators(x: Tensor, *others: Tensor | None) -> bool:
    """Whether such tensors are given to operators at all; these take tensors of one dtype on one device."""
    return (
        _chosen == "auto"
        and all(y is None or (y.dtype == x.dtype and y.device == x.device) for y in others)
        and not _transformed()
    )


def _transformed() -> bool:
    """Whether this happens in forward mode or vmap, which neither operators nor all libraries have."""
    return torch._C._are_functorch_transforms_active()


def _check_shapes(wanted: Sequence[int], **given: Tensor) -> None:
    # Kernels get addresses: what is too short would be read beyond its end.
    for name, x in given.items():
        if x.shape != tuple(wanted):
            raise ValueError(f"{name} must have shape {list(wanted)}, got {list(x.shape)}")


def _plain_sums(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    source, target = ends(edges, len(k))
    z = k[target] + q[source]
    gate = torch.sigmoid(z if c is None else z + c)
    nothing = torch.zeros_like(k)
    return nothing.index_add(0, target, gate * v[source]), nothing.index_add(0, target, gate)


def _plain_update(own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    return (F.silu(_plain_norm(own + num / (den + CLOSED), weight, bias)[0]),)


def _plain_norm(x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return (torch.addcmul(bias, centred * torch.rsqrt(variance + EPSILON), weight),)


def _plain_silu(x: Tensor) -> tuple[Tensor]:
    return (F.silu(x),)


_SUMS: Any = Operator("gated_sums", ["k", "q", "v", "c?"], ["edges"], like=[0, 0], plain=_plain_sums)
_UPDATE: Any = Operator("gated_update", ["own", "num", "den", "weight", "bias"], [], like=[0], plain=_plain_update)
_NORM: Any = Operator("row_norm", ["x", "weight", "bias"], [], like=[0], plain=_plain_norm)
_SILU: Any = Operator("silu", ["x"], [], like=[0], plain=_plain_silu)
if cpu.available:
    _SUMS.register("cpu", cpu.GATED)
    _UPDATE.register("cpu", cpu.UPDATE)
    _NORM.register("cpu", cpu.NORM)
    _SILU.register("cpu", cpu.SILU)
if cuda.available:
    _SUMS.register("cuda", cuda.GATED)
    _UPDATE.register("cuda", cuda.UPDATE)
    _SILU.register("cuda", cuda.SILU)
