"""Descent of a discrete flow: as an objective to train with, and as a count over all steps of a data set."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from solvers import Solution, rises


def descent_loss(energy: Tensor, margin: float = 0.05) -> Tensor:
    r"""How far the steps of a flow are from lowering their energy by a margin.

    .. math:: \frac{1}{N S} \sum_{k, s} \max\left(0, \frac{V_{k+1}^s - V_k^s}{|V_k^s|} + \text{margin}\right)

    Added to the loss of a model with a weight, it teaches the model to descend, so that a guard has nothing to do.
    It is 0 where every step lowers the energy of every system by the margin, relative to the energy.

    Args:
        energy: `[N + 1, S]`, the energies at the start and after every step, as :attr:`Solution.energy` of a guarded
            flow or of :meth:`Flow.take_steps` gives them.
        margin: The relative decrease that a step should have. A positive margin on the training set keeps rises rare
            on data that was not seen.

    >>> import torch
    >>> from lyapflow import descent_loss
    >>> descent_loss(torch.tensor([[2.0, 1.0], [1.0, 1.5]]), margin=0.1)  # one falls by half, one rises by half
    tensor(0.3000)
    """
    if energy.ndim != 2 or len(energy) < 2:
        raise ValueError(f"energy must have shape [N + 1, S] with N > 0 steps, got {list(energy.shape)}")
    if not margin >= 0:
        raise ValueError(f"margin must be 0 or more, got {margin}")
    before, after = energy[:-1], energy[1:]
    scale = before.abs().clamp(min=torch.finfo(energy.dtype).tiny)
    return torch.relu((after - before) / scale + margin).sum() / max(1, before.numel())


@dataclasses.dataclass(frozen=True)
class DescentCount:
    """How many steps of how many systems raised their energy, and how many a guard had to shorten.

    Counts of parts of a data set add up to those of the whole.

    Attributes:
        systems: How many systems were followed.
        steps: Their steps, together.
        rising_systems: Systems whose energy rose in some step, beyond rounding.
        rising_steps: Steps in which it rose.
        shortened_steps: Steps that a guard shortened.

    >>> import torch
    >>> from lyapflow import DescentCount, Flow, LyapunovField, Quadratic
    >>> flow = Flow(LyapunovField(Quadratic([1.0, 9.0])), steps=4, step_size=0.25)
    >>> count = DescentCount.of(flow.take_steps(torch.tensor([[1.0, 0.0], [0.0, 1.0]])))
    >>> print(count)
    VIOLATED: the energy rises in 1 of 2 systems, in 4 of 8 steps
    >>> flow.guard = True
    >>> print(count := DescentCount.of(flow.take_steps(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))))
    HOLDS: the energy rises in 0 of 2 systems, in 0 of 8 steps (4 shortened by the guard)
    >>> count.holds, (count + count).systems
    (True, 4)
    """

    systems: int = 0
    steps: int = 0
    rising_systems: int = 0
    rising_steps: int = 0
    shortened_steps: int = 0

    @classmethod
    def of(cls, solution: Solution[Tensor]) -> DescentCount:
        """From the energies of a solution that has those of every step."""
        rising = rises(solution.energy.detach())
        shortened = 0 if solution.fraction is None else int((solution.fraction < 1).sum())
        count = int(rising.any(0).sum()), int(rising.sum())
        return cls(rising.shape[1], rising.numel(), *count, shortened)

    def __add__(self, other: DescentCount) -> DescentCount:
        mine, theirs = (dataclasses.astuple(count) for count in (self, other))
        return DescentCount(*(a + b for a, b in zip(mine, theirs, strict=True)))

    @property
    def holds(self) -> bool:
        """Whether no step raised an energy."""
        return self.rising_steps == 0

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, systems: str = "systems") -> str:
        """The finding as one line, in which systems may have another name, as "graphs"."""
        word = "HOLDS" if self.holds else "VIOLATED"
        shortened = f" ({self.shortened_steps:,} shortened by the guard)" if self.shortened_steps else ""
        return (
            f"{word}: the energy rises in {self.rising_systems:,} of {self.systems:,} {systems}, "
            f"in {self.rising_steps:,} of {self.steps:,} steps{shortened}"
        )
