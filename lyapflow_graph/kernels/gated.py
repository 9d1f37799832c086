"""Gated sums over neighbours as an operator of torch, differentiable any number of times.

`lyapflow::gated_sums`, its backward and its double backward are operators of their own, so that `torch.compile` sees
them whole; each has a backend for the device at hand. A third derivative goes through the reference.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from . import cpu, reference
from .adjacency import ends

Backend = Literal["auto", "reference", "cpu"]
_chosen: Backend = "auto"


@contextlib.contextmanager
def gated_backend(name: Backend) -> Iterator[None]:
    """Choose who computes gated sums, for a while; by default the fastest that there is for a device.

    Args:
        name: "auto"; "reference", in plain torch, for any device and type; "cpu", compiled.

    >>> from lyapflow_graph.kernels import gated_backend
    >>> with gated_backend("reference"):
    ...     pass
    """
    global _chosen
    if name not in get_args(Backend):
        raise ValueError(f"backend must be one of {', '.join(get_args(Backend))}, got {name!r}")
    if name == "cpu" and not cpu.available:
        raise RuntimeError("there is no compiled backend: the package was installed where there was no C compiler")
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
    sum runs over the edges of a node in their order: results do not change from run to run, nor with the number of
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
    if k.dtype in (torch.float16, torch.bfloat16):
        # A sum over many neighbours would lose the last of them.
        wide = gated_sums(k.float(), q.float(), v.float(), None if c is None else c.float(), edges)
        return wide[0].to(v.dtype), wide[1].to(v.dtype)
    if torch._C._are_functorch_transforms_active():
        return reference.forward(k, q, v, c, *ends(edges, len(k)))  # operators have no forward mode, nor vmap
    return torch.ops.lyapflow.gated_sums(k, q, v, c, edges)


def _compiled(k: Tensor) -> bool:
    """Whether the compiled backend does it."""
    fits = cpu.available and k.device.type == "cpu" and k.dtype in (torch.float32, torch.float64)
    if _chosen == "cpu" and not fits:
        raise TypeError(f'the backend "cpu" is for float32 and float64 on the CPU, got {k.dtype} on {k.device}')
    return fits and _chosen != "reference"


# -- forward ----------------------------------------------------------------------------------------------------------


@torch.library.custom_op("lyapflow::gated_sums", mutates_args=())
def _forward(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    if _compiled(k):
        return cpu.forward(k, q, v, c, edges)
    return reference.forward(k, q, v, c, *ends(edges, len(k)))


@_forward.register_fake
def _(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    return k.new_empty(k.shape), k.new_empty(k.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward_of_forward(ctx: Any, gn: Tensor, gd: Tensor) -> tuple[Any, ...]:
    k, q, v, c, edges = ctx.saved_tensors
    dk, dq, dv, dc = torch.ops.lyapflow.gated_sums_backward(k, q, v, c, gn, gd, edges)
    return dk, dq, dv, None if c is None else dc, None


torch.library.register_autograd("lyapflow::gated_sums", _backward_of_forward, setup_context=_keep)


# -- backward ---------------------------------------------------------------------------------------------------------


@torch.library.custom_op("lyapflow::gated_sums_backward", mutates_args=())
def _backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, gn: Tensor, gd: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if _compiled(k):
        *of_nodes, dc = cpu.backward(k, q, v, c, gn, gd, edges)
    else:
        *of_nodes, dc = reference.backward(k, q, v, c, gn, gd, *ends(edges, len(k)))
    return (*of_nodes, k.new_empty(0) if c is None or dc is None else dc)


@_backward.register_fake
def _(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, gn: Tensor, gd: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dk, dq, dv = (k.new_empty(k.shape) for _ in range(3))
    return dk, dq, dv, k.new_empty(0 if c is None else c.shape)


def _backward_of_backward(ctx: Any, lk: Tensor, lq: Tensor, lv: Tensor, lc: Tensor) -> tuple[Any, ...]:
    k, q, v, c, gn, gd, edges = ctx.saved_tensors
    given = (k, q, v, c, gn, gd, lk, lq, lv, None if c is None else lc, edges)
    dgn, dgd, dk, dq, dv, dc = torch.ops.lyapflow.gated_sums_double_backward(*given)
    return dk, dq, dv, None if c is None else dc, dgn, dgd, None


torch.library.register_autograd("lyapflow::gated_sums_backward", _backward_of_backward, setup_context=_keep)


# -- double backward --------------------------------------------------------------------------------------------------


@torch.library.custom_op("lyapflow::gated_sums_double_backward", mutates_args=())
def _double_backward(
    k: Tensor,
    q: Tensor,
    v: Tensor,
    c: Tensor | None,
    gn: Tensor,
    gd: Tensor,
    lk: Tensor,
    lq: Tensor,
    lv: Tensor,
    lc: Tensor | None,
    edges: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    given = (k, q, v, c, gn, gd, lk, lq, lv, lc)
    if _compiled(k):
        *of_nodes, dc = cpu.double_backward(*given, edges)
    else:
        *of_nodes, dc = reference.double_backward(*given, *ends(edges, len(k)))
    return (*of_nodes, k.new_empty(0) if c is None or dc is None else dc)


@_double_backward.register_fake
def _(
    k: Tensor,
    q: Tensor,
    v: Tensor,
    c: Tensor | None,
    gn: Tensor,
    gd: Tensor,
    lk: Tensor,
    lq: Tensor,
    lv: Tensor,
    lc: Tensor | None,
    edges: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    dgn, dgd, dk, dq, dv = (k.new_empty(k.shape) for _ in range(5))
    return dgn, dgd, dk, dq, dv, k.new_empty(0 if c is None else c.shape)


def _backward_of_double_backward(ctx: Any, *cotangents: Tensor) -> tuple[Any, ...]:
    """Third derivatives and beyond, which are rare, by the reference, which torch can differentiate on its own."""
    *saved, edges = ctx.saved_tensors
    wanted = [i for i, x in enumerate(saved) if x is not None]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        points = [x if x is None or again else x.detach().requires_grad_() for x in saved]
        if again:  # a way of its own to each argument, also where two of them are one tensor
            points = [None if x is None else x.view_as(x) for x in points]
        results = reference.double_backward(*points, *ends(edges, len(saved[0])))  # type: ignore[arg-type]
        results = results if saved[3] is not None else results[:-1]
        pairs = [(r, g) for r, g in zip(results, cotangents, strict=False) if r.requires_grad]
        found = torch.autograd.grad(
            [r for r, _ in pairs],
            [points[i] for i in wanted],  # type: ignore[misc]
            [g for _, g in pairs],
            create_graph=again,
            allow_unused=True,
        )
    slopes: list[Tensor | None] = [None] * len(saved)
    for i, slope in zip(wanted, found, strict=True):
        slopes[i] = slope
    return (*slopes, None)


torch.library.register_autograd(
    "lyapflow::gated_sums_double_backward", _backward_of_double_backward, setup_context=_keep
)
