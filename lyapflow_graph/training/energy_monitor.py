"""What the energy of a model does along its flow: curves while it is trained, and a certificate of what it became."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch, Data

from lyapflow import Certificate, Flow, certify

from ..batch import GraphBatch
from ..conv import DynamicsConv
from ..models import GraphModel

_NODES_CERTIFIED = 2000


@dataclasses.dataclass(frozen=True)
class EnergyCurve:
    """The energy along the flow, averaged over the graphs of a batch.

    Attributes:
        energy_first: Where the flow starts.
        energy_last: Where it ends.
        dissipation: Energy lost in a unit of time.
        rising: The share of steps in which the energy of a graph rises by more than rounding.
    """

    energy_first: float
    energy_last: float
    dissipation: float
    rising: float

    @classmethod
    def of(cls, energy: Tensor, time: float) -> EnergyCurve:
        """From the energies after every step, `[steps + 1, S]`.

        >>> EnergyCurve.of(torch.tensor([[4.0], [1.0], [2.0]]), time=2.0)
        EnergyCurve(energy_first=4.0, energy_last=2.0, dissipation=1.0, rising=0.5)
        """
        if energy.numel() == 0:
            return cls(math.nan, math.nan, math.nan, math.nan)
        rounding = 8 * torch.finfo(energy.dtype).eps * energy.abs().amax(0)
        rising = (energy.diff(dim=0) > rounding).double().mean() if len(energy) > 1 else torch.zeros(())
        first, last = (float(row.double().mean()) for row in (energy[0], energy[-1]))
        return cls(first, last, (first - last) / time, float(rising))


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


def forward_with_energy(model: GraphModel, flow: DynamicsConv, data: Any) -> tuple[Tensor, EnergyCurve]:
    """What the model gives, and the energy along the way there, in one pass."""
    h, graphs = model.encode(data)
    solution = flow.solve(h, graphs, saveat="steps")
    h = flow.read(solution.y1)
    output = model.decode(h, graphs)
    return output, EnergyCurve.of(solution.energy, flow.num_steps * flow.step_size)


def certificate_of(model: GraphModel, graphs: Sequence[Data], samples: int, seed: int = 0) -> Certificate | None:
    """A certificate of the field of a model on the first of these graphs; None for a model without an energy.

    Args:
        model: The model, which is put in evaluation mode.
        graphs: As many are taken as have 2,000 nodes together, but one at least.
        samples: How many states are sampled.
        seed: Of the samples.
    """
    flow = flow_of(model)
    if flow is None:
        return None
    chosen, nodes = [graphs[0]], int(graphs[0].num_nodes or 0)
    for graph in (graphs[i] for i in range(1, len(graphs))):
        nodes += int(graph.num_nodes or 0)
        if nodes > _NODES_CERTIFIED:
            break
        chosen.append(graph)
    with torch.no_grad():
        h, batch = model.eval().encode(Batch.from_data_list(chosen))
        field = flow.bind(batch)
        return certify(
            Flow(field, flow.method, flow.num_steps, flow.step_size), flow.start(h), samples=samples, seed=seed
        )
