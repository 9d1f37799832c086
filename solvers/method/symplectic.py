"""Symplectic methods for separable systems: positions move by the momenta, momenta by the positions.

The state is a tuple of positions and momenta, or one tensor whose last dimension holds first the positions and then
the momenta. The field's position part must not depend on the positions, nor its momentum part on the momenta; for
other fields these methods have order one and no conservation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from ..term import Term
from .base import LockstepMethod, register
from .explicit import move

_WHOLE = ((0, 1.0),)


@final
class Symplectic(LockstepMethod):
    """A composition of leapfrog steps (kick, drift, kick) of the given lengths; neighbouring kicks are merged."""

    symplectic = True

    def __init__(self, name: str, order: int, lengths: Sequence[float]) -> None:
        self.name = name
        self.order = order
        self.drifts = tuple(lengths)
        ends = (0.0, *lengths, 0.0)
        self.kicks = tuple((a + b) / 2 for a, b in itertools.pairwise(ends))
        self.stages = len(self.kicks) + len(self.drifts)
        # A kick sees the time that the positions have reached, a drift that of the momenta.
        nodes, positions, momenta = [], 0.0, 0.0
        for i, kick in enumerate(self.kicks):
            nodes.append(positions)
            momenta += kick
            if i < len(self.drifts):
                nodes.append(momenta)
                positions += self.drifts[i]
        self.nodes = tuple(1.0 if abs(node - 1) < 1e-12 else node for node in nodes)

    def advance(
        self, term: Term, times: list[Tensor], h: Tensor | float, y: Tensor, f0: Tensor | None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        half = y.shape[-1] // 2
        q, p = y[..., :half], y[..., half:]
        for i, kick in enumerate(self.kicks):
            f = f0 if i == 0 and f0 is not None else term.velocity(times[2 * i], torch.cat([q, p], dim=-1))
            p = move(p, h * kick, _WHOLE, (f[..., half:],))
            if i < len(self.drifts):
                f = term.velocity(times[2 * i + 1], torch.cat([q, p], dim=-1))
                q = move(q, h * self.drifts[i], _WHOLE, (f[..., :half],))
        return torch.cat([q, p], dim=-1), None, ()


_OUTER = 1 / (2 - 2 ** (1 / 3))

register(Symplectic("leapfrog", 2, (1.0,)))
# H. Yoshida, Phys. Lett. A 150 (1990), 262-268.
register(Symplectic("yoshida4", 4, (_OUTER, 1 - 2 * _OUTER, _OUTER)))
