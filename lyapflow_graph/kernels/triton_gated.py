"""Gated sums in Triton. The formulas are at the top of gated_real.h.

One program sums over the edges of one node, in one block of channels. It takes several edges at a time, each of which
has sums of its own that are added up at the end: an order that depends on nothing but the number of channels, and
needs no atomic operation, so that results are the same bit by bit from run to run. A node with very many edges is
right, but takes as long as its edges take one program, `4` at a time where there are 64 channels or more.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import cuda
from .adjacency import Order, unpack
from .cpu import in_rows
from .cuda import like

_TILE = 256  # entries that a program of one warp holds of a tensor: eight in each thread
_MOST_CHANNELS = 64
_MOST_EDGES = 32
# Orders are views into one tensor: where they begin says nothing, and shall not make for a kernel of its own.
_ORDER = ["ptr", "other", "edge"]


@triton.jit
def sigmoid(z):
    # exp goes to infinity and this to zero, as it should: a flat energy has a gradient of zero.
    return 1 / (1 + tl.exp(-z))


@triton.jit
def _place(channels, CHANNELS: tl.constexpr):
    """The row of a program, its columns, and which of them there are."""
    columns = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)[None, :]
    return tl.program_id(0).to(tl.int64), columns, columns < channels


@triton.jit
def _edges(other, edge, e, end, inside, EDGES: tl.constexpr):
    """The other ends of some edges, their numbers, and which entries of them there are."""
    at = e + tl.arange(0, EDGES)[:, None]
    there = at < end
    ends, numbers = tl.load(other + at, there, 0), tl.load(edge + at, there, 0)
    return ends.to(tl.int64), numbers.to(tl.int64), there & inside


@triton.jit
def _store(x, row, channels, columns, inside, total):
    tl.store(x + row * channels + columns, tl.sum(total, axis=0)[None, :], inside)


@triton.jit(do_not_specialize_on_alignment=_ORDER)
def value(
    ptr, other, edge, k, k_row, q, q_row, v, v_row, c, c_row, num, den,
    channels, EDGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    i, columns, inside = _place(channels, CHANNELS)
    end = tl.load(ptr + i + 1)
    ki = tl.load(k + i * k_row + columns, inside, 0)
    of_num = tl.zeros((EDGES, CHANNELS), ki.dtype)
    of_den = tl.zeros((EDGES, CHANNELS), ki.dtype)
    for e in range(tl.load(ptr + i), end, EDGES):
        j, number, seen = _edges(other, edge, e, end, inside, EDGES)
        z = ki + tl.load(q + j * q_row + columns, seen, 0)
        if c is not None:
            z += tl.load(c + number * c_row + columns, seen, 0)
        s = tl.where(seen, sigmoid(z), 0)
        of_num += s * tl.load(v + j * v_row + columns, seen, 0)
        of_den += s
    _store(num, i, channels, columns, inside, of_num)
    _store(den, i, channels, columns, inside, of_den)


@triton.jit(do_not_specialize_on_alignment=_ORDER)
def backward_rows(
    ptr, other, edge, k, k_row, q, q_row, v, v_row, c, c_row, gn, gn_row, gd, gd_row, dk, dc,
    channels, EDGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By target: dk, and dc where there are features of edges."""
    i, columns, inside = _place(channels, CHANNELS)
    end = tl.load(ptr + i + 1)
    ki = tl.load(k + i * k_row + columns, inside, 0)
    gni, gdi = tl.load(gn + i * gn_row + columns, inside, 0), tl.load(gd + i * gd_row + columns, inside, 0)
    of_k = tl.zeros((EDGES, CHANNELS), ki.dtype)
    for e in range(tl.load(ptr + i), end, EDGES):
        j, number, seen = _edges(other, edge, e, end, inside, EDGES)
        z = ki + tl.load(q + j * q_row + columns, seen, 0)
        if c is not None:
            z += tl.load(c + number * c_row + columns, seen, 0)
        s = sigmoid(z)
        t = (gni * tl.load(v + j * v_row + columns, seen, 0) + gdi) * (s * (1 - s))
        of_k += tl.where(seen, t, 0)  # only now: zero times what is not a number would be none
        if dc is not None:
            tl.store(dc + number * channels + columns, t, seen)
    _store(dk, i, channels, columns, inside, of_k)


@triton.jit(do_not_specialize_on_alignment=_ORDER)
def backward_columns(
    ptr, other, edge, k, k_row, q, q_row, v, v_row, c, c_row, gn, gn_row, gd, gd_row, dq, dv,
    channels, EDGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By source: dq and dv."""
    j, columns, inside = _place(channels, CHANNELS)
    end = tl.load(ptr + j + 1)
    qj, vj = tl.load(q + j * q_row + columns, inside, 0), tl.load(v + j * v_row + columns, inside, 0)
    of_q = tl.zeros((EDGES, CHANNELS), qj.dtype)
    of_v = tl.zeros((EDGES, CHANNELS), qj.dtype)
    for e in range(tl.load(ptr + j), end, EDGES):
        i, number, seen = _edges(other, edge, e, end, inside, EDGES)
        z = tl.load(k + i * k_row + columns, seen, 0) + qj
        if c is not None:
            z += tl.load(c + number * c_row + columns, seen, 0)
        s = sigmoid(z)
        gni = tl.load(gn + i * gn_row + columns, seen, 0)
        t = (gni * vj + tl.load(gd + i * gd_row + columns, seen, 0)) * (s * (1 - s))
        of_q += tl.where(seen, t, 0)
        of_v += tl.where(seen, s * gni, 0)
    _store(dq, j, channels, columns, inside, of_q)
    _store(dv, j, channels, columns, inside, of_v)


@triton.jit(do_not_specialize_on_alignment=_ORDER)
def double_rows(
    ptr, other, edge, k, k_row, q, q_row, v, v_row, c, c_row, gn, gn_row, gd, gd_row,
    lk, lk_row, lq, lq_row, lv, lv_row, lc, lc_row, dgn, dgd, dk, dc,
    channels, EDGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By target: dgn, dgd, dk, and dc where there are features of edges."""
    i, columns, inside = _place(channels, CHANNELS)
    end = tl.load(ptr + i + 1)
    ki, lki = tl.load(k + i * k_row + columns, inside, 0), tl.load(lk + i * lk_row + columns, inside, 0)
    gni, gdi = tl.load(gn + i * gn_row + columns, inside, 0), tl.load(gd + i * gd_row + columns, inside, 0)
    of_gn = tl.zeros((EDGES, CHANNELS), ki.dtype)
    of_gd = tl.zeros((EDGES, CHANNELS), ki.dtype)
    of_k = tl.zeros((EDGES, CHANNELS), ki.dtype)
    for e in range(tl.load(ptr + i), end, EDGES):
        j, number, seen = _edges(other, edge, e, end, inside, EDGES)
        z, w = ki + tl.load(q + j * q_row + columns, seen, 0), lki + tl.load(lq + j * lq_row + columns, seen, 0)
        if c is not None:
            z += tl.load(c + number * c_row + columns, seen, 0)
        if lc is not None:
            w += tl.load(lc + number * lc_row + columns, seen, 0)
        vj, lvj = tl.load(v + j * v_row + columns, seen, 0), tl.load(lv + j * lv_row + columns, seen, 0)
        s = sigmoid(z)
        slope = s * (1 - s)
        w *= slope
        y = w * (1 - 2 * s) * (gni * vj + gdi) + gni * lvj * slope
        of_gn += tl.where(seen, w * vj + s * lvj, 0)
        of_gd += tl.where(seen, w, 0)
        of_k += tl.where(seen, y, 0)
        if dc is not None:
            tl.store(dc + number * channels + columns, y, seen)
    _store(dgn, i, channels, columns, inside, of_gn)
    _store(dgd, i, channels, columns, inside, of_gd)
    _store(dk, i, channels, columns, inside, of_k)


@triton.jit(do_not_specialize_on_alignment=_ORDER)
def double_columns(
    ptr, other, edge, k, k_row, q, q_row, v, v_row, c, c_row, gn, gn_row, gd, gd_row,
    lk, lk_row, lq, lq_row, lv, lv_row, lc, lc_row, dq, dv,
    channels, EDGES: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """By source: dq and dv."""
    j, columns, inside = _place(channels, CHANNELS)
    end = tl.load(ptr + j + 1)
    qj, lqj = tl.load(q + j * q_row + columns, inside, 0), tl.load(lq + j * lq_row + columns, inside, 0)
    vj, lvj = tl.load(v + j * v_row + columns, inside, 0), tl.load(lv + j * lv_row + columns, inside, 0)
    of_q = tl.zeros((EDGES, CHANNELS), qj.dtype)
    of_v = tl.zeros((EDGES, CHANNELS), qj.dtype)
    for e in range(tl.load(ptr + j), end, EDGES):
        i, number, seen = _edges(other, edge, e, end, inside, EDGES)
        z, w = tl.load(k + i * k_row + columns, seen, 0) + qj, tl.load(lk + i * lk_row + columns, seen, 0) + lqj
        if c is not None:
            z += tl.load(c + number * c_row + columns, seen, 0)
        if lc is not None:
            w += tl.load(lc + number * lc_row + columns, seen, 0)
        gni, gdi = tl.load(gn + i * gn_row + columns, seen, 0), tl.load(gd + i * gd_row + columns, seen, 0)
        s = sigmoid(z)
        slope = s * (1 - s)
        w *= slope
        y = w * (1 - 2 * s) * (gni * vj + gdi) + gni * lvj * slope
        of_q += tl.where(seen, y, 0)
        of_v += tl.where(seen, w * gni, 0)
    _store(dq, j, channels, columns, inside, of_q)
    _store(dv, j, channels, columns, inside, of_v)


# -- on tensors -------------------------------------------------------------------------------------------------------


def gated_sums(k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor) -> tuple[Tensor, ...]:
    num, den = like(k), like(k)
    _over_edges(value, unpack(edges, len(k)).by_target, (k, q, v, c), (num, den))
    return num, den


def gated_sums_backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor, gn: Tensor, gd: Tensor
) -> tuple[Tensor | None, ...]:
    by_target, by_source = unpack(edges, len(k))
    dk, dq, dv, dc = like(k), like(k), like(k), None if c is None else like(c)
    given = k, q, v, c, gn, gd
    _over_edges(backward_rows, by_target, given, (dk, dc))
    _over_edges(backward_columns, by_source, given, (dq, dv))
    return dk, dq, dv, dc


def gated_sums_double_backward(
    k: Tensor, q: Tensor, v: Tensor, c: Tensor | None, edges: Tensor, gn: Tensor, gd: Tensor, *cotangents: Tensor | None
) -> tuple[Tensor | None, ...]:
    by_target, by_source = unpack(edges, len(k))
    dgn, dgd, dk, dq, dv = (like(k) for _ in range(5))
    dc = None if c is None else like(c)
    lk, lq, lv = (torch.zeros_like(k) if along is None else along for along in cotangents[:3])
    given = k, q, v, c, gn, gd, lk, lq, lv, cotangents[3]
    _over_edges(double_rows, by_target, given, (dgn, dgd, dk, dc))
    _over_edges(double_columns, by_source, given, (dq, dv))
    return dgn, dgd, dk, dq, dv, dc


def _over_edges(
    kernel: Any, order: Order, given: tuple[Tensor | None, ...], results: tuple[Tensor | None, ...]
) -> None:
    first: Any = given[0]
    rows, channels = first.shape
    block = min(_MOST_CHANNELS, triton.next_power_of_2(max(1, channels)))
    placed: list[Any] = []
    for x in given:
        x = x if x is None else in_rows(x)
        placed += [x, 0 if x is None else x.stride(0)]
    grid = rows, triton.cdiv(channels, block)
    edges = min(_MOST_EDGES, _TILE // block)
    cuda.launch(kernel, grid, *order, *placed, *results, channels, EDGES=edges, CHANNELS=block, num_warps=1)
