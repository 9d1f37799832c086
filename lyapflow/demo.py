"""The field that `lyapflow demo` shows."""

from __future__ import annotations

import torch
from torch import Tensor

from .energies import Himmelblau
from .field import LyapunovField
from .tangents import AntisymmetricTangent


def demo_field(seed: int = 0) -> LyapunovField:
    """Himmelblau's function, and a rotation of its gradient.

    The rotation vanishes with the gradient. A direction that does not would circle a minimum ever faster, and take a
    method that keeps the energy from rising through ever smaller steps.

    >>> import torch
    >>> demo_field()(0.0, torch.zeros(1, 2)).shape
    torch.Size([1, 2])
    """
    torch.manual_seed(seed)
    return LyapunovField(Himmelblau(), AntisymmetricTangent(2), alpha=0.01, beta=0.02)


def demo_starts(seed: int = 0) -> Tensor:
    """Ten points of the plane.

    >>> demo_starts().shape
    torch.Size([10, 2])
    """
    return 8 * torch.rand(10, 2, generator=torch.Generator().manual_seed(seed)) - 4
