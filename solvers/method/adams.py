r"""Adams methods: the past derivatives of a solution instead of stages inside a step.

Steps may have any sizes. With :math:`\Phi_j` the modified divided differences of the past derivatives, the
predictor is :math:`p = y_n + h \sum_{j<k} g_j \Phi^*_j`, of order k, and the corrector adds
:math:`h\, g_k (f(t_{n+1}, y) - \sum_{j<k} \Phi^*_j)`, of order k + 1: E. Hairer, S. P. Norsett, G. Wanner, Solving
Ordinary Differential Equations I (Springer, 1993), section III.5. The order grows by one with every step.
"""

from __future__ import annotations

import dataclasses
from typing import final

import torch
from torch import Tensor

from ..term import Term
from .base import LockstepMethod, Step, register
from .explicit import ExplicitRK
from .tableaus import RK4

_START = ExplicitRK("rk4", RK4)
_STARTING_STEPS = 3  # of rk4, until three past derivatives are known


@final
class Adams(LockstepMethod):
    """Adams-Bashforth or, with a corrector, Adams-Bashforth-Moulton, after three steps of `rk4`.

    What is handed on from step to step is a tensor of rows like the state: the differences, then the step sizes.

    Args:
        name: The name of the method.
        corrector: Whether there is a corrector.
        max_order: The largest order of the corrector, 4 to 12; the predictor's is one less. 12 by default, 5 without a
            corrector: Adams-Bashforth methods of high order are unstable.
        max_iters: How often the corrector is iterated.
    """

    stages = 1
    nodes = (*_START.nodes,)

    def __init__(self, name: str, *, corrector: bool, max_order: int | None = None, max_iters: int = 4) -> None:
        max_order = (12 if corrector else 5) if max_order is None else max_order
        if not 4 <= max_order <= 12:
            raise ValueError(f"max_order must lie between 4 and 12, got {max_order}")
        if max_iters < 1:
            raise ValueError(f"max_iters must be at least 1, got {max_iters}")
        self.name, self.corrector, self.max_order = name, corrector, max_order
        self.iterations = max_iters if corrector else 0
        # The steps of rk4 at the start leave an error of order five.
        self.order = min(5, max_order if corrector else max_order - 1)

    def advance(
        self, term: Term, times: list[Tensor], h: Tensor | float, y: Tensor, f0: Tensor | None
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, ...]]:
        f = term.velocity(times[0], y)
        past = [] if f0 is None else list(f0[: len(f0) // 2])
        sizes = [] if f0 is None else list(f0[len(f0) // 2 :])
        differences = [f]
        for known in past[: self.max_order - 2]:
            differences.append(differences[-1] - known)
        count = len(differences)
        sizes = [torch.zeros_like(f) + h, *sizes][: self.max_order - 1]
        expected = _scaled(differences, sizes)
        carried = torch.stack([*differences, *sizes[:count]])
        if count < _STARTING_STEPS:
            y1, _, _ = _START.advance(term, times, h, y, f)
            return y1, carried, (f,)
        factors = _factors(sizes, count + 1)
        moved = torch.zeros_like(f)
        for factor, difference in zip(factors, differences, strict=False):
            moved = moved + factor * difference
        predicted = y1 = y + moved * sizes[0]
        for _ in range(self.iterations):
            y1 = predicted + sizes[0] * factors[count] * (term.velocity(times[-1], y1) - expected)
        return y1, carried, (f,)

    def complete(self, term: Term, step: Step, kind: str | None = None) -> Step:
        return super().complete(term, dataclasses.replace(step, f1=None), kind)


def _scaled(differences: list[Tensor], sizes: list[Tensor]) -> Tensor:
    """Bring the differences to the coming step, in place; their sum is the derivative that they predict at its end."""
    beta: Tensor | float = 1.0
    ahead, behind = sizes[0], torch.zeros_like(sizes[0])
    total = differences[0]
    for j in range(1, len(differences)):
        behind = behind + sizes[j]
        beta = beta * ahead / torch.where(behind == 0, 1.0, behind)  # zero: a system that does not move
        ahead = ahead + sizes[j]
        differences[j] = differences[j] * beta
        total = total + differences[j]
    return total


def _factors(sizes: list[Tensor], count: int) -> list[Tensor]:
    """g_0, ..., g_{count - 1}."""
    one = torch.ones_like(sizes[0])
    row: list[Tensor] = [one / q for q in range(1, count + 1)]
    factors, ahead = [row[0]], torch.zeros_like(one)
    for j in range(1, count):
        if j == 1:
            row = [one / (q * (q + 1)) for q in range(1, count)]
            ahead = sizes[0]
        else:
            ahead = ahead + sizes[j - 1]
            share = sizes[0] / torch.where(ahead == 0, 1.0, ahead)
            row = [row[q] - row[q + 1] * share for q in range(len(row) - 1)]
        factors.append(row[0])
    return factors


register(Adams("explicit_adams", corrector=False))
register(Adams("implicit_adams", corrector=True))
register(Adams("fixed_adams", corrector=True))
