"""Gated sums on the CPU, compiled: see gated.c."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

try:
    from . import _cpu  # type: ignore[attr-defined]
except ImportError:  # there was no compiler when the package was installed
    _cpu = None

available = _cpu is not None

_FORWARD, _BACKWARD_ROWS, _BACKWARD_COLUMNS, _DOUBLE_ROWS, _DOUBLE_COLUMNS = range(5)
_WORK_OF_A_THREAD = 2**15  # gates; with fewer it takes longer to start a thread than to compute them


def forward(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, Tensor]:
    num, den = _like(k), _like(k)
    _run(_FORWARD, edges, k, q, v, c, num, den)
    return num, den


def backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, gn: Tensor, gd: Tensor, edges: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    dk, dq, dv = _like(k), _like(k), _like(k)
    dc = None if c is None else _like(c)
    given = k, q, v, c, gn, gd
    _run(_BACKWARD_ROWS, edges, *given, dk, dc)
    _run(_BACKWARD_COLUMNS, edges, *given, dq, dv)
    return dk, dq, dv, dc


def double_backward(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    dgn, dgd, dk, dq, dv = (_like(k) for _ in range(5))
    dc = None if c is None else _like(c)
    given = k, q, v, c, gn, gd, lk, lq, lv, lc
    _run(_DOUBLE_ROWS, edges, *given, dgn, dgd, dk, dc)
    _run(_DOUBLE_COLUMNS, edges, *given, dq, dv)
    return dgn, dgd, dk, dq, dv, dc


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def _run(kernel: int, edges: Tensor, *tensors: Tensor | None) -> None:
    # A kernel takes rows wherever they lie, but the entries of a row must be neighbours.
    kept = [x if x is None or x.stride(1) == 1 or x.shape[1] <= 1 else x.contiguous() for x in tensors]
    first: Any = kept[0]
    nodes, channels = first.shape
    count = (len(edges) - 2 * (nodes + 1)) // 4
    threads = max(1, min(torch.get_num_threads(), count * channels // _WORK_OF_A_THREAD))
    start = edges.data_ptr()
    if kernel in (_BACKWARD_COLUMNS, _DOUBLE_COLUMNS):  # the second order: see adjacency.pack
        start += edges.element_size() * (nodes + 1 + 2 * count)
    numbers = [kernel, int(first.dtype == torch.float64), threads, nodes, channels, count, start]
    for x in kept:
        numbers += (0, 0) if x is None else (x.data_ptr(), x.stride(0))
    _cpu.gated(*numbers)
