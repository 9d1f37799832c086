"""Full attention that keeps nothing but its inputs, with second derivatives in closed form."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .gated import in_operators
from .operators import Kernels, Operator


def attention(query: Tensor, key: Tensor, value: Tensor, present: Tensor | None) -> Tensor:
    r"""Every place attends to all places of its own graph where there is a node.

    .. math::
        o = P v, \qquad P = \mathrm{softmax}\big(q k^T / \sqrt{c}\big).

    Automatic differentiation would keep every matrix of the size of P on the way, of the value, of its gradient and of
    the gradient's own; here they are computed again.

    Args:
        query: `[graphs, heads, width, c]`.
        key: Likewise.
        value: Likewise.
        present: `[graphs, width]`, whether there is a node; None where there is one in every place.

    >>> import torch
    >>> from lyapflow_graph.kernels import attention
    >>> x, present = torch.randn(2, 1, 3, 4), torch.tensor([[True, True, True], [True, False, False]])
    >>> out = attention(x, x, x, present)
    >>> torch.allclose(out[1, 0, 0], x[1, 0, 0])
    True
    """
    if in_operators(query, key, value):
        return _ATTENTION(query, key, value, present)
    return _plain(query, key, value, present)[0]


def _weights(query: Tensor, key: Tensor, present: Tensor | None) -> Tensor:
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    if present is not None:
        scores = scores.masked_fill(~present[:, None, None, :], torch.finfo(scores.dtype).min)
    return scores.softmax(-1)


def _plain(query: Tensor, key: Tensor, value: Tensor, present: Tensor | None) -> tuple[Tensor]:
    return (_weights(query, key, present) @ value,)


def _through_softmax(P: Tensor, x: Tensor) -> Tensor:
    """The derivative of the softmax along x, which is also its transpose."""
    weighted = P * x
    return weighted - P * weighted.sum(-1, keepdim=True)


def _backward(query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, g: Tensor) -> tuple[Tensor, ...]:
    P, scale = _weights(query, key, present), query.shape[-1] ** -0.5
    dS = _through_softmax(P, g @ value.transpose(-1, -2)) * scale
    return dS @ key, dS.transpose(-1, -2) @ query, P.transpose(-1, -2) @ g


def _double_backward(
    query: Tensor, key: Tensor, value: Tensor, present: Tensor | None, g: Tensor, *cotangents: Tensor | None
) -> tuple[Tensor, ...]:
    # With A = g v^T and W the change of the scores along (lq, lk), what is differentiated is <g, Y v + P lv>, where Y
    # is the change of P along W.
    lq, lk, lv = (torch.zeros_like(query) if x is None else x for x in cotangents)
    P, scale = _weights(query, key, present), query.shape[-1] ** -0.5
    A, B = g @ value.transpose(-1, -2), g @ lv.transpose(-1, -2)
    W = (lq @ key.transpose(-1, -2) + query @ lk.transpose(-1, -2)) * scale
    Y = _through_softmax(P, W)
    of_A, of_W = ((P * x).sum(-1, keepdim=True) for x in (A, W))
    dS = P * (A - of_A) * scale
    dS_ = _through_softmax(P, A * (W - of_W) - of_A * W + B) * scale
    dg = Y @ value + P @ lv
    dq = dS @ lk + dS_ @ key
    dk = dS.transpose(-1, -2) @ lq + dS_.transpose(-1, -2) @ query
    return dg, dq, dk, Y.transpose(-1, -2) @ g


_ATTENTION: Any = Operator("attention", ["query", "key", "value"], ["present?"], like=[2], plain=_plain)
for _device in ("cpu", "cuda"):
    _ATTENTION.register(_device, Kernels(_plain, _backward, _double_backward))
