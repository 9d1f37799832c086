"""What a field does to its energy at one state, measured, with the rounding error that it is measured up to."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from solvers import Systems
from solvers.autograd import fresh, recording
from solvers.typing import PerSystem, PerSystemBool

from .field import LyapunovField

# Roundings of the precision that an inner product may be off by, relative to the product of the lengths.
ROUNDINGS = 32


@dataclasses.dataclass(frozen=True)
class Inspection:
    """A field with an energy at one state; everything is per system, `[S]`.

    Attributes:
        energy: V.
        rate: dV/dt along the field, by the gradient of V.
        allowance: How far above zero rounding alone may put the rate.
        rounding: How far rounding alone may move the energy, by its own error and by that of the state.
        dissipation: What the field promises `-rate` to be; None for a field that does not say.
        mismatch: How far `rate` is from `-dissipation`, relative to the largest term of the rate; None likewise.
        orthogonality: `|<T, g>| / (|T| |g|)`, for a field that has a tangent; None likewise.
    """

    energy: PerSystem
    rate: PerSystem
    allowance: PerSystem
    rounding: PerSystem
    dissipation: PerSystem | None = None
    mismatch: PerSystem | None = None
    orthogonality: PerSystem | None = None

    @property
    def rises(self) -> PerSystemBool:
        """Where the energy grows along the field, beyond rounding, or is not finite."""
        finite = torch.isfinite(self.rate) & torch.isfinite(self.energy)
        return ~(finite & (self.rate <= self.allowance))


@torch.no_grad()
def inspect_field(field: Any, t: float | Tensor, h: Tensor, systems: Systems) -> Inspection:
    """Inspect any field with `energy(t, h) -> [S]` at a state; `systems` is bound to it."""
    inner = systems.inner
    if isinstance(field, LyapunovField):
        parts = field.parts(t, h)
        energy, gradient, rate = parts.energy, parts.gradient, parts.rate
        down, along = (
            parts.alpha.abs() * length(systems, parts.descent),
            parts.beta.abs() * length(systems, parts.tangent),
        )
        size = length(systems, gradient)
        largest = size * (down + along)
        explicit = (rate - inner(gradient, parts.velocity.to(gradient.dtype))).abs()
        lengths = size * length(systems, parts.tangent)
        overlap = inner(parts.tangent, gradient).abs()
        extra = {
            "dissipation": parts.dissipation,
            "mismatch": _ratio((rate + parts.dissipation).abs(), largest + explicit),
            "orthogonality": _ratio(overlap, lengths),
        }
    else:
        energy, gradient = _energy_and_gradient(field, t, h)
        velocity = field(t, h)
        rate = inner(gradient, velocity)
        largest = length(systems, gradient) * length(systems, velocity)
        extra = {}
    eps = torch.finfo(gradient.dtype).eps
    rounding = ROUNDINGS * eps * (energy.abs() + systems.total((gradient * h).abs()))
    return Inspection(energy, rate, ROUNDINGS * eps * largest, rounding, **extra)


def _energy_and_gradient(field: Any, t: float | Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    with recording():
        point = fresh(h)
        energy = field.energy(t, point)
        if not energy.requires_grad:
            return energy, torch.zeros_like(h)
        (gradient,) = torch.autograd.grad(energy.sum(), point, materialize_grads=True)
    return energy.detach(), gradient


def length(systems: Systems, x: Tensor) -> Tensor:
    """The length of each system's part, without under- or overflow of the squares."""
    scale = systems.largest(x)
    safe = torch.where((scale > 0) & torch.isfinite(scale), scale, 1.0)
    unit = x / systems.spread(safe)
    return safe * systems.inner(unit, unit).sqrt()


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where(b > 0, a / torch.where(b > 0, b, 1.0), a)
