"""The work of a gated layer, and its derivatives, at no more than they have to cost."""

from .gated import SiLU, gated_sums, gated_update, kernel_backend, silu, with_kernels

__all__ = ["SiLU", "gated_sums", "gated_update", "kernel_backend", "silu", "with_kernels"]
