"""A step size for each system saves the work that one shared step size spends on easy systems.

Claim: for 64 systems whose stiffness spreads over three decades, the sum over the systems of their evaluations with
`Rows` is at most a third of what one shared step size (`Single`) costs, where the stiffest system sets the step for
all. The largest error over systems is shown for both.

Two problems: Prothero and Robinson's linear one, whose solution is known, and van der Pol's oscillator. An evaluation
here is one evaluation of one system. The wall time is shown beside it: all systems share a tensor, so that time is
saved only where the stiffest system itself needs fewer steps.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

import torch
from report import Claim, largest, main, print_table
from timing import interleave
from torch import Tensor

from solvers import PID, Rows, Single, Solution, Systems, solve

SYSTEMS = 64
STIFFNESS = torch.logspace(0, 3, SYSTEMS, dtype=torch.float64)
SHARED, OWN = "one shared step size", "a step size for each"


@dataclasses.dataclass(frozen=True)
class Problem:
    """A batch of systems, one in each row."""

    field: Callable[[Tensor, Tensor], Tensor]
    y0: Tensor
    t1: float

    def solve(self, systems: Systems, rtol: float = 1e-5) -> Solution[Tensor]:
        controller = PID(rtol=rtol, atol=1e-2 * rtol)
        return solve(self.field, self.y0, 0.0, self.t1, method="dopri5", controller=controller, systems=systems)


def prothero_robinson() -> Problem:
    """y' = -k (y - cos t) - sin t: from any start quickly to cos t, at the rate k."""
    rate = STIFFNESS.unsqueeze(1)
    return Problem(lambda t, y: -rate * (y - torch.cos(t)) - torch.sin(t), torch.zeros(SYSTEMS, 1).double(), 2.0)


def van_der_pol() -> Problem:
    """x'' = mu (1 - x^2) x' - x, as a system of first order, at rest at x = 2."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        x, v = y.unbind(-1)
        return torch.stack([v, STIFFNESS * (1 - x * x) * v - x], dim=-1)

    return Problem(field, torch.tensor([2.0, 0.0]).double().repeat(SYSTEMS, 1), 0.5)


@torch.no_grad()
def measure(rounds: int) -> list[Claim]:
    work: dict[str, float] = {}
    for name, problem in {"Prothero-Robinson": prothero_robinson(), "van der Pol": van_der_pol()}.items():
        exact = problem.solve(Rows(), rtol=1e-10).y1
        runs = {SHARED: partial(problem.solve, Single()), OWN: partial(problem.solve, Rows())}
        solutions = {way: run() for way, run in runs.items()}
        evaluations = {
            SHARED: SYSTEMS * int(solutions[SHARED].stats["nfe"]),
            OWN: int(solutions[OWN].stats["nfe"].sum()),
        }
        timings = interleave(runs, rounds)
        rows = []
        for way, solution in solutions.items():
            steps = solution.stats["steps"]
            error = (solution.y1 - exact).abs().max()
            ratio = evaluations[way] / evaluations[SHARED]
            cells = [way, str(evaluations[way]), f"{ratio:.3f}x", f"{int(steps.min())}..{int(steps.max())}"]
            rows.append([*cells, f"{error:.1e}", *timings.row(way, SHARED)[1:]])
        header = (name, "evaluations", "ratio", "steps", "largest error", "ms", "spread", "time ratio")
        print_table(f"{name}: {SYSTEMS} systems, stiffness from 1 to 1000", header, rows)
        work[name] = evaluations[OWN] / evaluations[SHARED]
    return [largest("evaluations in units of those with one shared step size", work, at_most=1 / 3)]


if __name__ == "__main__":
    main(__doc__, measure)
