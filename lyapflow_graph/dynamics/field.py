"""A velocity on the nodes of graphs, and its energy where there is one, as a field bound to given graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from lyapflow import Field
from solvers.typing import PerSystem

from ..batch import GraphBatch
from ..conv import DynamicsConv


class GraphDynamics(DynamicsConv):
    """A layer that follows a velocity which is written down, as a function of the state and the graphs.

    >>> import torch
    >>> from lyapflow_graph.dynamics import GraphDynamics
    >>> class Fade(GraphDynamics):
    ...     has_energy = True
    ...     def velocity(self, h, graphs):
    ...         return -h
    ...     def energy(self, h, graphs):
    ...         return graphs.total(h * h) / 2
    >>> Fade(1, num_steps=2, step_size=0.5)(torch.ones(2, 1), torch.tensor([[0], [1]]))
    tensor([[0.2500],
            [0.2500]])
    """

    @abstractmethod
    def velocity(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        """dh/dt on these graphs."""

    @property
    def has_energy(self) -> bool:
        """Whether there is an energy that never grows, with the options that were chosen."""
        return False

    def energy(self, h: Tensor, graphs: GraphBatch) -> PerSystem:
        """The energy of every graph, `[S]`, where there is one."""
        raise NotImplementedError(f"{type(self).__name__} has no energy with these options")

    @property
    def state_channels(self) -> int:
        """Entries of a node in a state of the flow: by default its features."""
        return self.channels

    @property
    def reads_edge_attr(self) -> bool:
        """Whether features of edges make a difference: only by way of a network that was given."""
        return False

    def bind(self, graphs: GraphBatch) -> GraphField:
        if not self.reads_edge_attr:
            refuse_edge_attr(self, graphs)
        return GraphField(self, graphs)


def refuse_edge_attr(dynamics: DynamicsConv, graphs: GraphBatch) -> None:
    """Rather than leave them out without a word."""
    if graphs.edge_attr is not None:
        raise ValueError(f"edge_attr was given, but {type(dynamics).__name__} has no use for features of edges")


class SecondOrder(GraphDynamics):
    """Dynamics of positions and velocities (or momenta), which a state has side by side, `[num_nodes, 2 * channels]`.

    Both start as the features of the nodes, and the positions are read off in the end. Where nothing is damped,
    symplectic methods as "leapfrog" apply: neither half is moved by itself.
    """

    @property
    def state_channels(self) -> int:
        return 2 * self.channels

    def start(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=-1)

    def read(self, h: Tensor) -> Tensor:
        return h[..., : self.channels]


@final
class GraphField(Field):
    """The field of :class:`GraphDynamics` on given graphs, sharing its parameters. Made by `dynamics.field(...)`.

    It has `energy(t, h) -> [S]` exactly if the dynamics have one that never grows.

    Args:
        dynamics: The layer.
        graphs: The graphs.

    >>> import torch
    >>> from lyapflow_graph.dynamics import GRAFF, GRAND
    >>> edges = torch.tensor([[0, 1], [1, 0]])
    >>> hasattr(GRAFF(4).field(edges), "energy"), hasattr(GRAND(4).field(edges), "energy")
    (True, False)
    """

    def __init__(self, dynamics: GraphDynamics, graphs: GraphBatch) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.systems = graphs

    def forward(self, t: float | Tensor, h: Tensor) -> Tensor:
        """dh/dt."""
        self._check(h)
        return self.dynamics.velocity(h, self.systems).to(h.dtype)  # under autocast it is in another type

    @property
    def energy(self) -> Callable[[Any, Tensor], PerSystem]:
        """`energy(t, h) -> [S]`, where there is one."""
        if self.dynamics.has_energy:
            return self._energy
        raise AttributeError(f"with its options {type(self.dynamics).__name__} has no energy that is sure not to grow")

    @property
    def energy_module(self) -> GraphDynamics | None:
        """What two fields with the same energy have in common, so that their sum has it too."""
        return self.dynamics if self.dynamics.has_energy else None

    def _energy(self, t: Any, h: Tensor) -> PerSystem:
        self._check(h)
        with torch.autocast(h.device.type, enabled=False):
            return self.dynamics.energy(h, self.systems)

    def _check(self, h: Tensor) -> None:
        shape = (self.systems.num_nodes, self.dynamics.state_channels)
        if h.shape != shape:
            name = type(self.dynamics).__name__
            raise ValueError(f"a state of {name} on these graphs has shape {list(shape)}, got {list(h.shape)}")
