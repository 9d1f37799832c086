"""What the energy of a model does along its flow: counted over whole data sets, in every epoch and in the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from lyapflow import DescentCount
from solvers import ExplicitRK, Solution, rises
from solvers.method.base import find_method

from ..batch import GraphBatch
from ..conv import DynamicsConv
from ..models import GraphModel


def flow_of(model: GraphModel) -> DynamicsConv | None:
    """The flow inside a model, if it has one with an energy.

    >>> from lyapflow_graph import GatedGCN, GraphNet, Tango
    >>> flow_of(Tango(5, 8, 2))
    TangoConv(...)
    >>> flow_of(GraphNet(5, 8, 2, GatedGCN(8))) is None
    True
    """
    body = model.body
    if not isinstance(body, DynamicsConv):
        return None
    nothing = torch.zeros(2, 0, dtype=torch.long)
    width = getattr(body, "edge_dim", None)
    field = body.bind(GraphBatch(nothing, 1, None if width is None else torch.zeros(0, width)))
    return body if callable(getattr(field, "energy", None)) else None


def forward_with_energy(
    model: GraphModel, flow: DynamicsConv, data: Any, guard: bool | None = None
) -> tuple[Tensor, Solution[Tensor]]:
    """The output of a model and the solution of its flow, with the energies of all steps, in one pass.

    Args:
        model: The model.
        flow: Its flow.
        data: A `Data` or `Batch`.
        guard: Whether the steps are guarded; by default as the flow says.
    """
    h, graphs = model.encode(data)
    if isinstance(find_method(flow.method), ExplicitRK):
        solution = flow.take_steps(h, graphs, guard=guard)
    else:
        solution = flow.solve(h, graphs, saveat="steps")
    return model.decode(flow.read(solution.y1), graphs), solution


@torch.no_grad()
def count_descent(model: GraphModel, batches: Iterable[Any]) -> DescentCount | None:
    """In how many graphs and steps the energy of a model rises; None for a model without an energy.

    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph import Tango
    >>> ring = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1, 2], [1, 2, 0]]))
    >>> count_descent(Tango(5, 8, 2), [ring, ring]).holds
    True
    """
    flow = flow_of(model)
    if flow is None:
        return None
    counts = (DescentCount.of(forward_with_energy(model, flow, batch)[1]) for batch in batches)
    return sum(counts, DescentCount())


@dataclasses.dataclass
class EnergyMonitor:
    """Adds up what the energy does over the batches of an epoch.

    Attributes:
        count: Of graphs and steps.
        violating: Graphs with a step that raised the energy, or that the guard had to shorten.
        first: The sum of the energies at the start of the flow.
        last: The sum of those at its end.
    """

    count: DescentCount = dataclasses.field(default_factory=DescentCount)
    violating: int = 0
    first: float = 0.0
    last: float = 0.0

    def add(self, solution: Solution[Tensor]) -> None:
        """The energies of a batch."""
        energy = solution.energy.detach().double()
        self.count = self.count + DescentCount.of(solution)
        self.violating += int(violations(solution).sum())
        self.first += float(energy[0].sum())
        self.last += float(energy[-1].sum())

    def over_all(self, reduce: Any) -> EnergyMonitor:
        """The sum over all processes, where `reduce` sums a tensor over them."""
        own = [*dataclasses.astuple(self.count), self.violating, self.first, self.last]
        *counts, violating, first, last = reduce(torch.tensor(own, dtype=torch.float64)).tolist()
        return EnergyMonitor(DescentCount(*map(int, counts)), int(violating), first, last)

    def row(self) -> dict[str, float]:
        """The columns of the history."""
        graphs, steps = max(1, self.count.systems), max(1, self.count.steps)
        return {
            "energy_first": self.first / graphs,
            "energy_last": self.last / graphs,
            "rising": self.count.rising_steps / steps,
            "shortened": self.count.shortened_steps / steps,
        }


def violations(solution: Solution[Tensor]) -> Tensor:
    """Which graphs have a step that raised the energy, or that the guard had to shorten: `[S]`."""
    rising = rises(solution.energy.detach()).any(0)
    return rising if solution.fraction is None else rising | (solution.fraction < 1).any(0)
