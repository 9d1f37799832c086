"""The kernels of cpu.c on tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .operators import Kernels

try:
    from . import _cpu  # type: ignore[attr-defined]
except ImportError:  # there was no compiler when the package was installed
    _cpu = None

Slopes = tuple[Tensor, Tensor]
available: bool = _cpu is not None

# In the order of the enumeration in cpu.c.
(
    _GATED_VALUE, _GATED_ROWS, _GATED_COLUMNS, _GATED_DOUBLE_ROWS, _GATED_DOUBLE_COLUMNS,
    _UPDATE_VALUE, _UPDATE_BACKWARD, _UPDATE_DOUBLE, _SILU_VALUE, _SILU_BACKWARD, _SILU_DOUBLE, _SILU_DUAL,
    _VELOCITY_DOTS, _VELOCITY_REST, _VELOCITY_VALUE, _VELOCITY_PRODUCTS, _VELOCITY_BACKWARD,
    _LAYER_VALUE, _LAYER_ROWS, _LAYER_COLUMNS, _LAYER_DUAL_VALUE, _LAYER_DUAL_ROWS, _LAYER_DUAL_COLUMNS,
    _HEAD_VALUE, _HEAD_DUAL,
) = range(25)  # fmt: skip
_BY_SOURCE = (_GATED_COLUMNS, _GATED_DOUBLE_COLUMNS, _LAYER_COLUMNS, _LAYER_DUAL_COLUMNS)
_LANES = 8
_WORK_OF_A_THREAD = 2**15  # entries; with fewer it takes longer to start a thread than to compute them


def fits(x: Tensor) -> bool:
    """Whether there is a kernel for such a tensor."""
    return available and x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64)


def in_rows(x: Tensor) -> Tensor:
    """With the entries of each row side by side, which the kernels need."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def _gated_value(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, ...]:
    num, den = _like(k), _like(k)
    _launch(_GATED_VALUE, edges, k, q, v, c, num, den)
    return num, den


def _gated_backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor, gn: Tensor, gd: Tensor
) -> tuple[Tensor | None, ...]:
    dk, dq, dv = _like(k), _like(k), _like(k)
    dc = None if c is None else _like(c)
    given = k, q, v, c, gn, gd
    _launch(_GATED_ROWS, edges, *given, dk, dc)
    _launch(_GATED_COLUMNS, edges, *given, dq, dv)
    return dk, dq, dv, dc


def _gated_double_backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor, gn: Tensor, gd: Tensor, *cotangents: Tensor | None
) -> tuple[Tensor | None, ...]:
    dgn, dgd, dk, dq, dv = (_like(k) for _ in range(5))
    dc = None if c is None else _like(c)
    lk, lq, lv = (_or_zeros(cotangent, k) for cotangent in cotangents[:3])
    given = k, q, v, c, gn, gd, lk, lq, lv, cotangents[3]
    _launch(_GATED_DOUBLE_ROWS, edges, *given, dgn, dgd, dk, dc)
    _launch(_GATED_DOUBLE_COLUMNS, edges, *given, dq, dv)
    return dgn, dgd, dk, dq, dv, dc


def _update_value(*given: Tensor) -> tuple[Tensor, ...]:
    y = _like(given[0])
    _launch(_UPDATE_VALUE, None, *given, y)
    return (y,)


def _update_backward(own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor, gy: Tensor) -> Any:
    found = [_like(own), _like(own), _like(own), _like(weight), _like(bias)]
    _launch(_UPDATE_BACKWARD, None, own, num, den, weight, bias, gy, *found)
    return found


def _update_double_backward(
    own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor, gy: Tensor, *cotangents: Tensor | None
) -> Any:
    along = [_or_zeros(given, x) for given, x in zip(cotangents, (own, own, own, weight, bias), strict=True)]
    found = [_like(own), _like(own), _like(own), _like(own), _like(weight), _like(bias)]
    _launch(_UPDATE_DOUBLE, None, own, num, den, weight, bias, gy, *along, *found)
    return found


def _silu_value(x: Tensor) -> tuple[Tensor, ...]:
    return _flat(_SILU_VALUE, x, 1)


def _silu_backward(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return _flat(_SILU_BACKWARD, x, 1, g)


def _silu_double_backward(x: Tensor, g: Tensor, cotangent: Tensor | None) -> tuple[Tensor, ...]:
    return _flat(_SILU_DOUBLE, x, 2, g, _or_zeros(cotangent, x))


GATED: Kernels = Kernels(_gated_value, _gated_backward, _gated_double_backward)
UPDATE: Kernels = Kernels(_update_value, _update_backward, _update_double_backward)
SILU: Kernels = Kernels(_silu_value, _silu_backward, _silu_double_backward)


# -- a layer as a whole -------------------------------------------------------------------------------------------------


def width(channels: int) -> int:
    """How wide the rows are that a layer keeps to itself."""
    return -(-channels // _LANES) * _LANES


def layer_value(
    p: Tensor, c: Tensor | None, weight: Tensor, bias: Tensor, h: Tensor, edges: Tensor, residual: bool, features: bool
) -> tuple[Tensor, Tensor | None, Tensor]:
    """y, silu(y) if asked for, and for every node what is needed of its sums."""
    rows, channels = h.shape
    y, f = _like(h), _like(h) if features else None
    sums = _rows_of(p, 3, weight)
    _run(_LAYER_VALUE, edges, rows, channels, (p, c, weight, bias, h if residual else None, y, f, sums))
    return y, f, sums


def layer_backward(
    p: Tensor, c: Tensor | None, sums: Tensor, weight: Tensor, bias: Tensor, gy: Tensor, edges: Tensor, of_edges: bool
) -> tuple[Tensor, Tensor | None, Slopes]:
    """The derivatives in p, c and the normalisation, given that in y."""
    rows, channels = gy.shape
    dp, gn, dnorm = _like(p), _rows_of(p, 1, weight), (_like(weight), _like(bias))
    dc = None if c is None or not of_edges else _like(c)
    _run(_LAYER_ROWS, None, rows, channels, (p, sums, weight, bias, gy, dp, gn, *dnorm))
    _run(_LAYER_COLUMNS, edges, rows, channels, (p, c, sums, gn, dp, dc))
    return dp, dc, dnorm


def layer_dual_value(
    p: Tensor, p_: Tensor, c: Tensor | None, sums: Tensor, weight: Tensor, bias: Tensor, h_: Tensor, edges: Tensor,
    residual: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The change of y and of the sums along that of h and p."""
    y_, sums_ = _like(h_), _like(sums)
    given = p, p_, c, sums, weight, bias, h_ if residual else None
    _run(_LAYER_DUAL_VALUE, edges, *h_.shape, (*given, y_, sums_))
    return y_, sums_


def layer_dual_backward(
    p: Tensor, p_: Tensor, c: Tensor | None, sums: Tensor, sums_: Tensor, weight: Tensor, bias: Tensor, gy: Tensor,
    gy_: Tensor, edges: Tensor,
) -> tuple[Tensor, Tensor | None, Slopes]:  # fmt: skip
    """The change of what `layer_backward` gives along that of p, the sums and gy."""
    rows, channels = gy.shape
    dp_, gn, dnorm = _like(p), _rows_of(p, 2, weight), (_like(weight), _like(bias))
    dc = None if c is None else _like(c)
    _run(_LAYER_DUAL_ROWS, None, rows, channels, (p, p_, sums, sums_, weight, bias, gy, gy_, dp_, gn, *dnorm))
    _run(_LAYER_DUAL_COLUMNS, edges, rows, channels, (p, p_, c, sums, sums_, gn, dp_, dc))
    return dp_, dc, dnorm


def head_value(t: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None) -> tuple[Tensor, Tensor]:
    """The density at every node, v^2 with v = <silu(t), weight> + bias, and its derivative in t, times the seed."""
    density, gt = t.new_empty(len(t)), _like(t)
    _run(_HEAD_VALUE, None, *t.shape, (t, weight, bias, seed, density, gt))
    return density, gt


def head_dual(
    t: Tensor, t_: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, seed_: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The change of that derivative along those of t and the seed, and of the derivatives in weight and bias."""
    gt_, dweight, dbias = _like(t), _like(weight), _like(weight)
    _run(_HEAD_DUAL, None, *t.shape, (t, t_, weight, bias, seed, seed_, gt_, dweight, dbias))
    return gt_, dweight, dbias


def silu_backward(x: Tensor, g: Tensor) -> Tensor:
    """g times the derivative of silu."""
    return _silu_backward(x, g)[0]


def silu_dual(x: Tensor, g: Tensor, x_: Tensor, g_: Tensor) -> Tensor:
    """The change of `silu_backward` along those of x and g."""
    return _flat(_SILU_DUAL, x, 1, g, x_, g_)[0]


# -- a field ------------------------------------------------------------------------------------------------------------


def velocity(
    direction: Tensor, gradient: Tensor, alpha: Tensor, beta: Tensor, index: Tensor | None
) -> tuple[Tensor, Tensor]:
    """-alpha g + beta T, and for every system what the backward needs of its shares."""
    systems = len(alpha)
    shares, found = alpha.new_empty(systems, 4), _like(gradient)
    of_rows = alpha.new_empty(3 * len(gradient))
    first = direction, gradient, index, shares
    for kernel, others in (
        (_VELOCITY_DOTS, (of_rows,)),
        (_VELOCITY_REST, (of_rows,)),
        (_VELOCITY_VALUE, (alpha, beta, found)),
    ):
        _run(kernel, None, *gradient.shape, (*first, *others), systems)
    return found, shares


def velocity_backward(
    direction: Tensor, gradient: Tensor, alpha: Tensor, beta: Tensor, index: Tensor | None, shares: Tensor, l: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The derivatives in direction, gradient, alpha and beta."""
    systems, of_rows, products = len(alpha), alpha.new_empty(2 * len(gradient)), _like(alpha)
    dM, dg, dalpha, dbeta = _like(gradient), _like(gradient), _like(alpha), _like(beta)
    first = direction, gradient, index, shares
    _run(_VELOCITY_PRODUCTS, None, *gradient.shape, (*first, of_rows, l, products, dalpha, dbeta), systems)
    _run(_VELOCITY_BACKWARD, None, *gradient.shape, (*first, alpha, beta, products, l, dM, dg), systems)
    return dM, dg, dalpha, dbeta


def _rows_of(p: Tensor, count: int, like: Tensor) -> Tensor:
    return torch.empty((len(p), count * len(like)), dtype=p.dtype)


def _like(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype)


def _or_zeros(x: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros(like.shape, dtype=like.dtype) if x is None else x


def _flat(kernel: int, x: Tensor, outputs: int, *others: Tensor) -> tuple[Tensor, ...]:
    """An elementwise kernel."""
    found = tuple(torch.empty(x.shape, dtype=x.dtype) for _ in range(outputs))
    rows = [y.contiguous().view(-1, x.shape[-1] if x.ndim else 1) if y.numel() else y.view(0, 1) for y in (x, *others)]
    _launch(kernel, None, *rows, *(y.view(rows[0].shape) for y in found))
    return found


def _launch(kernel: int, edges: Tensor | None, *tensors: Tensor | None) -> None:
    # A kernel takes rows wherever they lie, but the entries of a row must be neighbours.
    kept = [x if x is None else in_rows(x) for x in tensors]
    first: Any = kept[0]
    _run(kernel, edges, *first.shape, kept)


def _run(
    kernel: int, edges: Tensor | None, rows: int, channels: int, tensors: Sequence[Tensor | None], systems: int = 0
) -> None:
    count, start, work = systems, 0, rows
    if edges is not None:
        count = work = (len(edges) - 2 * (rows + 1)) // 4
        start = edges.data_ptr()
        if kernel in _BY_SOURCE:  # the second order: see adjacency.pack
            start += edges.element_size() * (rows + 1 + 2 * count)
    first: Any = tensors[0]
    threads = max(1, min(torch.get_num_threads(), work * channels // _WORK_OF_A_THREAD))
    numbers = [kernel, int(first.dtype == torch.float64), threads, rows, channels, count, start]
    for x in tensors:
        numbers += (0, 0) if x is None else (x.data_ptr(), x.stride(0))
    _cpu.launch(*numbers)
