"""Autograd modes: gradients that are taken on the way, whatever mode the caller is in."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.utils._pytree
from torch import Tensor


def recording() -> contextlib.AbstractContextManager[Any]:
    """Autograd is on inside, also under `torch.no_grad()` and `torch.inference_mode()`."""
    return _leaving_inference_mode() if torch.is_inference_mode_enabled() else torch.enable_grad()


@contextlib.contextmanager
def _leaving_inference_mode() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def fresh(y: Tensor) -> Tensor:
    """The same values as a new leaf that records gradients."""
    if y.is_inference():
        y = y.clone()
    return y.detach().requires_grad_()


Function = TypeVar("Function", bound=Callable[..., Any])


def outside_inference_mode(function: Function) -> Function:
    """Make a function work under `torch.inference_mode()` too, by leaving it.

    Fields and implicit methods take gradients on the way, which tensors made in inference mode cannot be part of.
    """

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():
            args, kwargs = torch.utils._pytree.tree_map_only(Tensor, _ordinary, (args, kwargs))
            return function(*args, **kwargs)

    return wrapped  # type: ignore[return-value]


def _ordinary(x: Tensor) -> Tensor:
    return x.clone() if x.is_inference() else x
