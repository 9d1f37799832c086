"""SiLU with its first and second derivative in Triton, entry by entry."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import cuda
from .cuda import like
from .triton_gated import sigmoid

_BLOCK = 1024


@triton.jit
def _entries(count, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return at, at < count


@triton.jit
def value(x, y, count, BLOCK: tl.constexpr):
    at, inside = _entries(count, BLOCK)
    xs = tl.load(x + at, inside, 0)
    tl.store(y + at, xs * sigmoid(xs), inside)


@triton.jit
def backward(x, g, dx, count, BLOCK: tl.constexpr):
    at, inside = _entries(count, BLOCK)
    xs = tl.load(x + at, inside, 0)
    s = sigmoid(xs)
    tl.store(dx + at, tl.load(g + at, inside, 0) * (s + xs * s * (1 - s)), inside)


@triton.jit
def double(x, g, along, dg, dx, count, BLOCK: tl.constexpr):
    at, inside = _entries(count, BLOCK)
    xs, ls = tl.load(x + at, inside, 0), tl.load(along + at, inside, 0)
    s = sigmoid(xs)
    slope = s * (1 - s)
    tl.store(dg + at, ls * (s + xs * slope), inside)
    gs = tl.load(g + at, inside, 0)
    tl.store(dx + at, gs * ls * slope * (2 + xs * (1 - 2 * s)), inside)


# -- on tensors -------------------------------------------------------------------------------------------------------


def silu(x: Tensor) -> tuple[Tensor, ...]:
    return _flat(value, 1, x)


def silu_backward(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    return _flat(backward, 1, x, g)


def silu_double_backward(x: Tensor, g: Tensor, cotangent: Tensor | None) -> tuple[Tensor, ...]:
    return _flat(double, 2, x, g, torch.zeros_like(x) if cotangent is None else cotangent)


def _flat(kernel: Any, results: int, *given: Tensor) -> tuple[Tensor, ...]:
    found = tuple(like(given[0]) for _ in range(results))
    count = given[0].numel()
    cuda.launch(kernel, (triton.cdiv(count, _BLOCK),), *(x.contiguous() for x in given), *found, count, BLOCK=_BLOCK)
    return found
