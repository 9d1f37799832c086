"""Energies by name, each with a way to draw one: what the property tests of fields are run on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, final

from torch import Tensor

from ..base import PointwiseEnergy
from ..registry import Registry

Normal = Callable[..., Tensor]
Made = TypeVar("Made", bound=Callable[..., PointwiseEnergy])


@final
@dataclasses.dataclass(frozen=True)
class EnergyEntry:
    """An energy of the registry.

    Attributes:
        name: What it is asked for by.
        make: The class.
        draw: An example for points of `width` entries, called as `draw(width, normal)`; `normal(*shape)` gives random
            numbers. Its parameters are drawn afterwards.
        widths: The least and the largest width of a point; None where there is no limit.
    """

    name: str
    make: Callable[..., PointwiseEnergy]
    draw: Callable[[int, Normal], PointwiseEnergy]
    widths: tuple[int, int | None] = (1, None)

    def takes(self, width: int) -> bool:
        """Whether points of this width have such an energy."""
        least, most = self.widths
        return least <= width and (most is None or width <= most)


def _entry_of(name: str, found: Any) -> EnergyEntry:
    entry = next((entry for entry in ENERGIES.values() if found in (entry, entry.make)), None)
    return entry or EnergyEntry(name, found, lambda width, normal: found())


ENERGIES: Registry[EnergyEntry] = Registry("energy", _entry_of)
"""All energies by name."""


def register_energy(
    name: str,
    draw: Callable[[int, Normal], PointwiseEnergy] | None = None,
    *,
    widths: tuple[int, int | None] = (1, None),
) -> Callable[[Made], Made]:
    """Decorate the class of an energy: :func:`lyapflow.testing.energies` then draws it, and so do tests that use it.

    Args:
        name: A name that is still free.
        draw: See :class:`EnergyEntry`; by default the class is made without arguments.
        widths: See :class:`EnergyEntry`.

    >>> import torch
    >>> from lyapflow import PointwiseEnergy
    >>> from lyapflow.energies import ENERGIES, register_energy
    >>> @register_energy("quartic")
    ... class Quartic(PointwiseEnergy):
    ...     def density(self, h):
    ...         return h.pow(4).sum(-1)
    >>> ENERGIES["quartic"].make()(torch.ones(1, 2))
    tensor([2.])
    """

    def register(make: Made) -> Made:
        ENERGIES.add(name, EnergyEntry(name, make, draw or (lambda width, normal: make()), widths))
        return make

    return register
