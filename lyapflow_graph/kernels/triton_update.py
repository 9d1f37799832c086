"""What a node makes of its sums, in Triton. The formulas are at the top of update_real.h.

A program takes several rows at a time, whole. Sums over rows, for weight and bias, are taken by every program over its
own rows, then over the programs: their number depends on the shape alone, so that the order is fixed.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import cuda, gated
from .cpu import in_rows
from .cuda import like
from .triton_gated import sigmoid

_CLOSED = tl.constexpr(gated.CLOSED)
_EPSILON = tl.constexpr(gated.EPSILON)
_TILE = 256  # entries that a warp holds of a tensor: eight in each thread
_MOST_WARPS = 8
_MOST_PROGRAMS = 1024


@triton.jit
def _places(tile, rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr):
    i, columns = tile * ROWS + tl.arange(0, ROWS), tl.arange(0, CHANNELS)
    return i.to(tl.int64)[:, None], columns[None, :], (i < rows)[:, None] & (columns < channels)[None, :]


@triton.jit
def _mean(x, channels):
    return tl.sum(x, axis=1)[:, None] / channels


@triton.jit
def _normalise(u, channels, inside):
    """From u to x, and 1 / standard deviation. Zero outside."""
    centred = tl.where(inside, u - _mean(u, channels), 0)
    inverse = 1 / tl.sqrt(_mean(centred * centred, channels) + _EPSILON)
    return centred * inverse, inverse


@triton.jit
def value(
    own, own_row, num, num_row, den, den_row, weight, bias, y,
    rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    i, columns, inside = _places(tl.program_id(0), rows, channels, ROWS, CHANNELS)
    r = tl.load(num + i * num_row + columns, inside, 0) / (tl.load(den + i * den_row + columns, inside, 0) + _CLOSED)
    x, _ = _normalise(tl.load(own + i * own_row + columns, inside, 0) + r, channels, inside)
    here = columns < channels
    t = x * tl.load(weight + columns, here, 0) + tl.load(bias + columns, here, 0)
    tl.store(y + i * channels + columns, t * sigmoid(t), inside)


@triton.jit
def backward(
    own, own_row, num, num_row, den, den_row, weight, bias, gy, gy_row, down, dnum, dden, dweights, dbiases,
    rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    columns = tl.arange(0, CHANNELS)[None, :]
    here = columns < channels
    w, b = tl.load(weight + columns, here, 0), tl.load(bias + columns, here, 0)
    of_weight = tl.zeros((ROWS, CHANNELS), w.dtype)
    of_bias = tl.zeros((ROWS, CHANNELS), w.dtype)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        i, columns, inside = _places(tile, rows, channels, ROWS, CHANNELS)
        over = 1 / (tl.load(den + i * den_row + columns, inside, 0) + _CLOSED)
        r = tl.load(num + i * num_row + columns, inside, 0) * over
        x, inverse = _normalise(tl.load(own + i * own_row + columns, inside, 0) + r, channels, inside)
        t = x * w + b
        s = sigmoid(t)
        gt = tl.load(gy + i * gy_row + columns, inside, 0) * (s + t * s * (1 - s))
        of_weight += gt * x
        of_bias += gt
        g = gt * w
        gu = inverse * (g - _mean(g, channels) - x * _mean(g * x, channels))
        tl.store(down + i * channels + columns, gu, inside)
        tl.store(dnum + i * channels + columns, gu * over, inside)
        tl.store(dden + i * channels + columns, -gu * over * r, inside)
    _store_sums(dweights, of_weight, channels, columns)
    _store_sums(dbiases, of_bias, channels, columns)


@triton.jit
def double(
    own, own_row, num, num_row, den, den_row, weight, bias, gy, gy_row,
    lown, lown_row, lnum, lnum_row, lden, lden_row, lweight, lbias, dgy, down, dnum, dden, dweights, dbiases,
    rows, channels, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """The derivative of the backward along (own', num', den', weight', bias'), with gy held."""
    columns = tl.arange(0, CHANNELS)[None, :]
    here = columns < channels
    w, b = tl.load(weight + columns, here, 0), tl.load(bias + columns, here, 0)
    w_, b_ = tl.load(lweight + columns, here, 0), tl.load(lbias + columns, here, 0)
    of_weight = tl.zeros((ROWS, CHANNELS), w.dtype)
    of_bias = tl.zeros((ROWS, CHANNELS), w.dtype)
    for tile in range(tl.program_id(0), tl.cdiv(rows, ROWS), tl.num_programs(0)):
        i, columns, inside = _places(tile, rows, channels, ROWS, CHANNELS)
        over = 1 / (tl.load(den + i * den_row + columns, inside, 0) + _CLOSED)
        r = tl.load(num + i * num_row + columns, inside, 0) * over
        shrink = tl.load(lden + i * lden_row + columns, inside, 0) * over
        r_ = tl.load(lnum + i * lnum_row + columns, inside, 0) * over - r * shrink
        x, inverse = _normalise(tl.load(own + i * own_row + columns, inside, 0) + r, channels, inside)
        u_ = tl.load(lown + i * lown_row + columns, inside, 0) + r_
        q = _mean(x * u_, channels)
        x_ = tl.where(inside, inverse * (u_ - _mean(u_, channels) - x * q), 0)
        t, t_ = x * w + b, x_ * w + x * w_ + b_
        s = sigmoid(t)
        slope = s * (1 - s)
        first = s + t * slope  # the derivative of silu
        gys = tl.load(gy + i * gy_row + columns, inside, 0)
        gt, gt_ = gys * first, gys * slope * (2 + t * (1 - 2 * s)) * t_
        of_weight += gt_ * x + gt * x_
        of_bias += gt_
        g, g_ = gt * w, gt_ * w + gt * w_
        B, B_ = _mean(g * x, channels), _mean(g_ * x + g * x_, channels)
        gu = inverse * (g - _mean(g, channels) - x * B)
        gu_ = inverse * (g_ - _mean(g_, channels) - x_ * B - x * B_) - inverse * q * gu
        tl.store(dgy + i * channels + columns, first * t_, inside)
        tl.store(down + i * channels + columns, gu_, inside)
        tl.store(dnum + i * channels + columns, (gu_ - gu * shrink) * over, inside)
        tl.store(dden + i * channels + columns, (gu * r * shrink - gu_ * r - gu * r_) * over, inside)
    _store_sums(dweights, of_weight, channels, columns)
    _store_sums(dbiases, of_bias, channels, columns)


@triton.jit
def _store_sums(to, of_rows, channels, columns):
    """What a program has summed, in a row of its own."""
    total = tl.sum(of_rows, axis=0)[None, :]
    tl.store(to + tl.program_id(0) * channels + columns, total, columns < channels)


# -- on tensors -------------------------------------------------------------------------------------------------------


def gated_update(own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
    y = like(own)
    rows, channels = own.shape
    tile = _tile(channels)
    given = *_placed(own, num, den), in_rows(weight), in_rows(bias), y
    cuda.launch(value, (triton.cdiv(rows, tile["ROWS"]),), *given, rows, channels, **tile)
    return (y,)


def gated_update_backward(
    own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor, gy: Tensor
) -> tuple[Tensor, ...]:
    given = *_placed(own, num, den), in_rows(weight), in_rows(bias), *_placed(gy)
    return _with_sums(backward, given, [like(own) for _ in range(3)])


def gated_update_double_backward(
    own: Tensor, num: Tensor, den: Tensor, weight: Tensor, bias: Tensor, gy: Tensor, *cotangents: Tensor | None
) -> tuple[Tensor, ...]:
    points = own, num, den, weight, bias
    along = [torch.zeros_like(x) if given is None else given for given, x in zip(cotangents, points, strict=True)]
    given = *_placed(own, num, den), in_rows(weight), in_rows(bias), *_placed(gy)
    ways = *_placed(*along[:3]), in_rows(along[3]), in_rows(along[4])
    return _with_sums(double, (*given, *ways), [like(own) for _ in range(4)])


def _with_sums(kernel: Any, given: tuple[Any, ...], results: list[Tensor]) -> tuple[Tensor, ...]:
    """The results, and the sums for weight and bias."""
    rows, channels = results[0].shape
    tile = _tile(channels)
    programs = min(_MOST_PROGRAMS, triton.cdiv(rows, tile["ROWS"]))
    sums = results[0].new_empty(2, programs, channels)
    cuda.launch(kernel, (programs,), *given, *results, *sums, rows, channels, **tile)
    return (*results, *sums.sum(1))


def _tile(channels: int) -> dict[str, int]:
    wide = triton.next_power_of_2(max(1, channels))
    return {"ROWS": max(1, _TILE // wide), "CHANNELS": wide, "num_warps": min(_MOST_WARPS, max(1, wide // _TILE))}


def _placed(*tensors: Tensor) -> list[Any]:
    """Each tensor and how far apart its rows are."""
    rows = [in_rows(x) for x in tensors]
    return [y for x in rows for y in (x, x.stride(0))]
