"""The kernels in Triton, for tensors on a CUDA device.

Triton comes with the CUDA builds of torch. It is imported when the first kernel is launched, so that who has no such
device does not wait for it, and needs none.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch
from torch import Tensor

from .operators import Kernel, Kernels

available: bool = importlib.util.find_spec("triton") is not None


def fits(x: Tensor) -> bool:
    """Whether there is a kernel for such a tensor."""
    return available and x.device.type == "cuda" and x.dtype in (torch.float32, torch.float64)


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Run a kernel on the device of its tensors; an empty grid has nothing to do."""
    if 0 in grid:
        return
    first = next(x for x in arguments if isinstance(x, Tensor))
    with torch.cuda.device_of(first):  # Triton takes the current one
        # Products and sums may be done in one, whatever is the default of a version of Triton.
        kernel[grid](*arguments, enable_fp_fusion=True, **constants)


def like(x: Tensor) -> Tensor:
    """Room for a result: the shape of x, without its strides."""
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _kernels(module: str, name: str) -> Kernels:
    def load(suffix: str) -> Kernel:
        def run(*given: Tensor | None) -> Any:
            return getattr(importlib.import_module(f".{module}", __package__), f"{name}{suffix}")(*given)

        return run

    return Kernels(load(""), load("_backward"), load("_double_backward"))


GATED: Kernels = _kernels("triton_gated", "gated_sums")
UPDATE: Kernels = _kernels("triton_update", "gated_update")
SILU: Kernels = _kernels("triton_silu", "silu")
