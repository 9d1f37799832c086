"""Sums over neighbours that cost no more than they have to."""

from .gated import gated_backend, gated_sums

__all__ = ["gated_backend", "gated_sums"]
