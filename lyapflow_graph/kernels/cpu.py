"""The kernels of cpu.c on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .adjacency import count_edges
from .operators import Kernels

try:
    from . import _cpu  # type: ignore[attr-defined]
except ImportError:  # there was no compiler when the package was installed
    _cpu = None

Pair = tuple[Tensor, Tensor]
LayerSums = tuple[Tensor, Tensor]  # of dweight, dbias, dk and down; of dq and dv
available: bool = _cpu is not None
has_flow: bool = hasattr(_cpu, "flow")  # which not every compiler makes

# In the order of the enumeration in cpu.c.
(
    _GATED_VALUE, _GATED_ROWS, _GATED_COLUMNS, _GATED_DOUBLE_ROWS, _GATED_DOUBLE_COLUMNS,
    _UPDATE_VALUE, _UPDATE_BACKWARD, _UPDATE_DOUBLE, _NORM_VALUE, _NORM_BACKWARD, _NORM_DOUBLE,
    _SILU_VALUE, _SILU_BACKWARD, _SILU_DOUBLE,
    _VELOCITY_DOTS, _VELOCITY_REST, _VELOCITY_VALUE, _VELOCITY_PRODUCTS, _VELOCITY_BACKWARD,
    _LAYER_VALUE, _LAYER_ROWS, _LAYER_COLUMNS, _LAYER_DUAL_VALUE, _LAYER_DUAL_ROWS, _LAYER_DUAL_COLUMNS,
    _HEAD_VALUE, _HEAD_DUAL,
) = range(27)  # fmt: skip
_BY_SOURCE = (_GATED_COLUMNS, _GATED_DOUBLE_COLUMNS, _LAYER_COLUMNS, _LAYER_DUAL_COLUMNS)
_LANES = 16
_LARGE = 2**18  # bytes
_ROWS_AT_ONCE = 512
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
    found, sums = [_like(own), _like(own), _like(own)], empty((2, weight.shape[0]), own.dtype)
    _launch(_UPDATE_BACKWARD, None, own, num, den, weight, bias, gy, *found, sums)
    return *found, *(row.clone() for row in sums)  # what an operator returns shares no memory


def _update_double_backward(
    own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor, gy: Tensor, *cotangents: Tensor | None
) -> Any:
    along = [_or_zeros(given, x) for given, x in zip(cotangents, (own, own, own, weight, bias), strict=True)]
    found, sums = [_like(own), _like(own), _like(own), _like(own)], empty((2, weight.shape[0]), own.dtype)
    _launch(_UPDATE_DOUBLE, None, own, num, den, weight, bias, gy, *along, *found, sums)
    return *found, *(row.clone() for row in sums)  # what an operator returns shares no memory


def _norm_value(u: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    y = _like(u)
    _launch(_NORM_VALUE, None, u, weight, bias, y)
    return (y,)


def _norm_backward(u: Tensor, weight: Tensor, bias: Tensor, gy: Tensor) -> Any:
    du, sums = _like(u), empty((2, width(u.shape[1])), u.dtype)
    _launch(_NORM_BACKWARD, None, u, weight, gy, du, sums)
    return du, *(row[: u.shape[1]].clone() for row in sums)  # what an operator returns shares no memory


def _norm_double_backward(
    u: Tensor, weight: Tensor, bias: Tensor, gy: Tensor, *cotangents: Tensor | None
) -> tuple[Tensor, ...]:
    along = [_or_zeros(given, x) for given, x in zip(cotangents, (u, weight, bias), strict=True)]
    dgy, du, sums = _like(u), _like(u), empty((width(u.shape[1]),), u.dtype)
    _launch(_NORM_DOUBLE, None, u, weight, gy, *along, dgy, du, sums)
    return dgy, du, sums[: u.shape[1]].clone(), torch.zeros_like(bias)


def _silu_value(x: Tensor) -> tuple[Tensor, ...]:
    return _flat(_SILU_VALUE, x, 1)


def _silu_backward(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return _flat(_SILU_BACKWARD, x, 1, g)


def _silu_double_backward(x: Tensor, g: Tensor, cotangent: Tensor | None) -> tuple[Tensor, ...]:
    return _flat(_SILU_DOUBLE, x, 2, g, _or_zeros(cotangent, x))


GATED: Kernels = Kernels(_gated_value, _gated_backward, _gated_double_backward)
UPDATE: Kernels = Kernels(_update_value, _update_backward, _update_double_backward)
NORM: Kernels = Kernels(_norm_value, _norm_backward, _norm_double_backward)
SILU: Kernels = Kernels(_silu_value, _silu_backward, _silu_double_backward)


# -- a layer as a whole -----------------------------------------------------------------------------------------------


def width(channels: int) -> int:
    """How wide the rows are that a layer keeps to itself."""
    return -(-channels // _LANES) * _LANES


class Kept(NamedTuple):
    """What the derivatives of a layer need of its value, or of the change of that: for every node."""

    p: Tensor  # [q v k own]
    sums: Tensor
    stats: Tensor


def layer_value(
    p: Tensor, c: Tensor | None, biases: Tensor, norm: Pair, h: Tensor, edges: Tensor, share: bool, residual: bool,
    features: bool,
) -> tuple[Tensor, Tensor | None, Kept]:  # fmt: skip
    """y, silu(y) if asked for, and what the derivatives need. `p` is without the biases; some are added to it.

    `share` is whether gates are normalised; where they are not, that of v is in `p` already and zero in `biases`.
    """
    y, f = _like(h), _like(h) if features else None
    kept = _kept(p, norm)
    _run(_LAYER_VALUE, edges, h.shape, (p, c, biases, *norm, h if residual else None, y, f, *kept[1:]), share=share)
    return y, f, kept


def layer_backward(
    kept: Kept,
    c: Tensor | None,
    norm: Pair,
    gy: Tensor,
    y: Tensor | None,
    edges: Tensor,
    share: bool,
    of_edges: bool,
    residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, LayerSums]:
    """The derivatives in p and c, given that in y; or, with y, that in silu(y); and the sums of those in p.

    With a residual also the one in y again, to add to.
    """
    dp, gn, sums = _like(kept.p), _rows_of(kept.p, 1, norm), _sums_of(norm)
    dc, again = None if c is None or not of_edges else torch.zeros_like(c), _like(gy) if residual else None
    _run(_LAYER_ROWS, None, gy.shape, (*kept, *norm, gy, y, again, dp, gn, sums[0]))
    _run(_LAYER_COLUMNS, edges, gy.shape, (kept.p, c, kept.sums, gn, dp, dc, sums[1]), share=share)
    return dp, dc, again, sums


class After(NamedTuple):
    """What comes after the last layer of an energy, f = silu(y), and the changes of both."""

    y: Tensor
    f: Tensor
    y_: Tensor
    f_: Tensor


def layer_dual_value(
    kept: Kept,
    p_: Tensor,
    c: Tensor | None,
    norm: Pair,
    h: Tensor,
    h_: Tensor,
    edges: Tensor,
    share: bool,
    residual: bool,
    last: bool,
) -> tuple[Tensor, After | None, Kept]:
    """The change of y and of what is kept, along that of h and p; and, if asked for, what comes after."""
    y_, kept_ = _like(h_), _kept(p_, norm)
    after = After(_like(h_), _like(h_), y_, _like(h_)) if last else None
    given = kept.p, p_, c, kept.sums, kept.stats, *norm, *((h, h_) if residual else (None, None))
    tensors = *given, *(after or (None, None, y_, None)), *kept_[1:]
    _run(_LAYER_DUAL_VALUE, edges, h_.shape, tensors, share=share)
    return y_, after, kept_


def layer_dual_backward(
    kept: Kept, kept_: Kept, c: Tensor | None, norm: Pair, gy: Tensor, gy_: Tensor | None, after: After | None,
    edges: Tensor, share: bool, residual: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None, LayerSums]:  # fmt: skip
    """The change of what `layer_backward` gives along that of p and gy; with `after`, gy is that in f = silu(y)."""
    dp_, gns, sums = _like(kept.p), _rows_of(kept.p, 2, norm), _sums_of(norm)
    dc, again = None if c is None else torch.zeros_like(c), _like(gy) if residual else None
    pairs = kept.p, kept_.p, kept.sums, kept_.sums, kept.stats, kept_.stats
    of_y = (None, None) if after is None else (after.y, after.y_)
    _run(_LAYER_DUAL_ROWS, None, gy.shape, (*pairs, *norm, gy, gy_, *of_y, again, dp_, gns, sums[0]))
    tensors = kept.p, kept_.p, c, kept.sums, kept_.sums, gns, dp_, dc, sums[1]
    _run(_LAYER_DUAL_COLUMNS, edges, gy.shape, tensors, share=share)
    return dp_, dc, again, sums


def head_value(t: Tensor, bias_t: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None) -> Pair:
    """The density at every node, v^2 with v = <silu(t), weight> + bias, and its derivative in t, times the seed.

    `t` is without its bias, which is added to it.
    """
    density, gt = t.new_empty(t.shape[0]), _like(t)
    _run(_HEAD_VALUE, None, t.shape, (t, bias_t, weight, bias, seed, density, gt))
    return density, gt


def head_dual(
    t: Tensor, t_: Tensor, weight: Tensor, bias: Tensor, seed: Tensor | None, seed_: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """That derivative, its change along those of t and the seed; and of the sums for weight, bias_t and bias."""
    gt, gt_, sums = _like(t), _like(t), empty((3, t.shape[1]), t.dtype)
    _run(_HEAD_DUAL, None, t.shape, (t, t_, weight, bias, seed, seed_, gt, gt_, sums))
    return gt, gt_, sums


# -- a field ----------------------------------------------------------------------------------------------------------


def velocity(
    direction: Tensor, gradient: Tensor, alpha: Tensor, beta: Tensor, index: Tensor | None
) -> tuple[Tensor, Tensor]:
    """-alpha g + beta T, and for every system what the backward needs of its shares."""
    systems = alpha.shape[0]
    shares, found = alpha.new_empty(systems, 4), _like(gradient)
    of_rows = alpha.new_empty(3 * gradient.shape[0])
    first = direction, gradient, index, shares
    for kernel, others in (
        (_VELOCITY_DOTS, (of_rows,)),
        (_VELOCITY_REST, (of_rows,)),
        (_VELOCITY_VALUE, (alpha, beta, found)),
    ):
        _run(kernel, None, gradient.shape, (*first, *others), systems)
    return found, shares


def velocity_backward(
    direction: Tensor,
    gradient: Tensor,
    alpha: Tensor,
    beta: Tensor,
    index: Tensor | None,
    shares: Tensor,
    along: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The derivatives in direction, gradient, alpha and beta."""
    systems, of_rows, products = alpha.shape[0], alpha.new_empty(2 * gradient.shape[0]), _like(alpha)
    dM, dg, dalpha, dbeta = _like(gradient), _like(gradient), _like(alpha), _like(beta)
    first = direction, gradient, index, shares
    _run(_VELOCITY_PRODUCTS, None, gradient.shape, (*first, of_rows, along, products, dalpha, dbeta), systems)
    _run(_VELOCITY_BACKWARD, None, gradient.shape, (*first, alpha, beta, products, along, dM, dg), systems)
    return dM, dg, dalpha, dbeta


def flow(*given: Any) -> int:
    """A whole flow on small graphs, or its backward, as flow.h says; gives the size of the tape."""
    return _cpu.flow(*given)


def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """`torch.empty`; large ones in memory that was used before, see blocks.h."""
    count = math.prod(shape)
    size = count * dtype.itemsize
    if size < _LARGE:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(_cpu.block(size), dtype=dtype, count=count).view(shape)


def _rows_of(p: Tensor, count: int, norm: Pair) -> Tensor:
    return empty((p.shape[0], count * norm[0].shape[0]), p.dtype)


def _kept(p: Tensor, norm: Pair) -> Kept:
    return Kept(p, _rows_of(p, 3, norm), empty((p.shape[0], 2), p.dtype))


def _sums_of(norm: Pair) -> LayerSums:
    width, dtype = norm[0].shape[0], norm[0].dtype
    return empty((4, width), dtype), empty((2, width), dtype)


def _like(x: Tensor) -> Tensor:
    return empty(x.shape, x.dtype)


def held() -> tuple[int, int]:
    """Bytes of such memory in use, and bytes that are free to be used again."""
    return _cpu.held() if available else (0, 0)


def release() -> None:
    """Give the free ones back to the system."""
    if available:
        _cpu.release()


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a @ b`, in such memory."""
    return torch.mm(a, b, out=empty((a.shape[0], b.shape[1]), a.dtype))


def product_over_rows(*pairs: Pair) -> Tensor:
    """The sum of `a.T @ b` over pairs, in pieces of so many rows that no library divides a piece among threads.

    So the result does not depend on their number.
    """
    a, b = pairs[0]
    total = a.new_zeros(a.shape[1], b.shape[1])
    for start in range(0, a.shape[0], _ROWS_AT_ONCE):
        rows = slice(start, start + _ROWS_AT_ONCE)
        for a, b in pairs:
            total.addmm_(a[rows].T, b[rows])
    return total


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
    _run(kernel, edges, first.shape, kept)


def _run(
    kernel: int, edges: Tensor | None, shape: Sequence[int], tensors: Sequence[Tensor | None], systems: int = 0,
    share: bool = True,
) -> None:  # fmt: skip
    rows, channels = shape
    count, start, work = systems, 0, rows
    if edges is not None:
        count = work = count_edges(edges, rows)
        start = edges.data_ptr()
        if kernel in _BY_SOURCE:  # the second order: see adjacency.pack
            start += edges.element_size() * (rows + 1 + 2 * count)
    first: Any = tensors[0]
    threads = max(1, min(torch.get_num_threads(), work * channels // _WORK_OF_A_THREAD))
    numbers = [kernel, int(first.dtype == torch.float64), threads, rows, channels, count, int(share), start]
    for x in tensors:
        numbers += (0, 0) if x is None else (x.data_ptr(), x.stride(0))
    _cpu.launch(*numbers)
