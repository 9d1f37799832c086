"""Gated sums and their derivatives in plain torch: the truth that all other backends are compared with.

For an edge from j to i, with `s = sigmoid(k_i + q_j + c_ij)`, channel by channel:
`num_i = sum_j s v_j` and `den_i = sum_j s`.
"""

from __future__ import annotations

import torch
from torch import Tensor


def forward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    gate = _gate(k, q, c, source, target)
    return _sum(gate * v[source], target, len(k)), _sum(gate, target, len(k))


def backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, gn: Tensor, gd: Tensor, source: Tensor, target: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The derivatives of `<gn, num> + <gd, den>` in k, q, v and c."""
    gate = _gate(k, q, c, source, target)
    slope = (gn[target] * v[source] + gd[target]) * gate * (1 - gate)
    nodes = len(k)
    return _sum(slope, target, nodes), _sum(slope, source, nodes), _sum(gate * gn[target], source, nodes), slope


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
    source: Tensor,
    target: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The derivatives of `<lk, dk> + <lq, dq> + <lv, dv> + <lc, dc>` in gn, gd, k, q, v and c."""
    gate = _gate(k, q, c, source, target)
    along = lk[target] + lq[source]
    if lc is not None:
        along = along + lc
    slope = gate * (1 - gate)
    moved = along * slope
    curve = moved * (1 - 2 * gate) * (gn[target] * v[source] + gd[target]) + gn[target] * lv[source] * slope
    nodes = len(k)
    return (
        _sum(moved * v[source] + gate * lv[source], target, nodes),
        _sum(moved, target, nodes),
        _sum(curve, target, nodes),
        _sum(curve, source, nodes),
        _sum(moved * gn[target], source, nodes),
        curve,
    )


def _gate(k: Tensor, q: Tensor, c: Tensor | None, source: Tensor, target: Tensor) -> Tensor:
    z = k[target] + q[source]
    return torch.sigmoid(z if c is None else z + c)


def _sum(of_edges: Tensor, index: Tensor, nodes: int) -> Tensor:
    return of_edges.new_zeros(nodes, of_edges.shape[1]).index_add(0, index, of_edges)
