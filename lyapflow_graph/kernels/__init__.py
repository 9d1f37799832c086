"""The work of a gated layer, and its derivatives, at no more than they have to cost."""

from .attention import attention
from .gated import SiLU, gated_sums, gated_update, kernel_backend, row_norm, silu, with_kernels

__all__ = ["SiLU", "attention", "gated_sums", "gated_update", "kernel_backend", "row_norm", "silu", "with_kernels"]
