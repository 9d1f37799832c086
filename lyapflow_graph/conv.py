"""What all dynamics on graphs have in common: a field on given graphs, and a layer that follows it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lyapflow import Flow
from solvers import Checkpointed, Method, Solution, Stop
from solvers.guarded import steps_taken

from .batch import GraphBatch, as_graphs, check_features, count_nodes
from .kernels.flow import Steps


class DynamicsConv(nn.Module, ABC):
    """A layer of a graph network that follows a field on the nodes for some time.

    It is called like any layer of PyTorch Geometric, and gives the field itself for everything that takes fields:
    `odeint`, `solve`, `certify`, sums with other fields.

    Args:
        channels: Features of a node, in and out.
        num_steps: How many steps are taken.
        step_size: Their size; together they give the time that the field is followed for.
        method: A name from :func:`solvers.methods`, or a method. Adaptive ones choose their steps themselves and take
            `step_size` as the first.
        checkpoint: Whether to compute every step again when gradients flow back, rather than to keep what it recorded:
            the memory of one step instead of all, for one more forward pass.
        guard: Whether every step is guarded, so that none raises the energy of a graph; see :class:`lyapflow.Flow`.
            It can be switched at any time.

    >>> import torch
    >>> from lyapflow import LyapunovField
    >>> from lyapflow_graph import DirichletEnergy, DynamicsConv
    >>> class Heat(DynamicsConv):
    ...     def bind(self, graphs):
    ...         return LyapunovField(DirichletEnergy(systems=graphs))
    >>> Heat(1, num_steps=100)(torch.tensor([[1.0], [0.0]]), torch.tensor([[0, 1], [1, 0]]))
    tensor([[0.5000],
            [0.5000]])
    """

    def __init__(
        self,
        channels: int,
        num_steps: int = 8,
        step_size: float = 0.1,
        method: str | Method = "euler",
        checkpoint: bool = False,
        guard: bool = False,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"channels must be positive, got {channels}")
        Flow(_Nothing(), method, num_steps, step_size, guard=guard)  # says what is wrong with its arguments
        self.channels = channels
        self.guard = guard
        self.num_steps, self.step_size = num_steps, step_size
        self.method, self.checkpoint = method, checkpoint

    @abstractmethod
    def bind(self, graphs: GraphBatch) -> Any:
        """The field on these graphs, sharing the parameters of this layer."""

    def start(self, x: Tensor) -> Tensor:
        """The state that the flow starts from, given the features of the nodes: by default these."""
        return x

    def read(self, h: Tensor) -> Tensor:
        """The features of the nodes in a state of the flow: by default the state."""
        return h

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        reset(self)

    def field(
        self,
        edge_index: Tensor | GraphBatch,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        *,
        num_nodes: int | None = None,
        batch_size: int | None = None,
    ) -> Any:
        """The field `f(t, h)` on these graphs, sharing the parameters of this layer.

        Args:
            edge_index: `[2, E]`, or a :class:`GraphBatch` instead of all the arguments.
            edge_attr: `[E, edge_dim]`.
            batch: `[num_nodes]`, the graph that every node belongs to.
            num_nodes: How many nodes there are, by default as many as `batch` has, or `edge_index` names.
            batch_size: How many graphs there are, by default as many as `batch` names.
        """
        if num_nodes is None:
            num_nodes = count_nodes(edge_index, batch)
        return self.bind(as_graphs(edge_index, num_nodes, edge_attr, batch, batch_size))

    # torch.compile has no double backward, which a step takes: it compiles what is around the flow, not the flow.
    @torch.compiler.disable
    def forward(
        self,
        x: Tensor,
        edge_index: Tensor | GraphBatch,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """The features at the end of the flow, `[num_nodes, channels]`, given those at its start.

        Args:
            x: `[num_nodes, channels]`.
            edge_index: `[2, E]`, or a :class:`GraphBatch` instead of all the following arguments.
            edge_attr: `[E, edge_dim]`.
            batch: `[num_nodes]`, the graph that every node belongs to.
            batch_size: How many graphs there are, by default as many as `batch` names.
        """
        check_features("x", x, self.channels)
        graphs = as_graphs(edge_index, x.shape[0], edge_attr, batch, batch_size)
        steps = self.all_steps(x, graphs, self.guard)
        return self.read(self.solve(x, graphs).y1 if steps is None else steps.last)

    def all_steps(
        self, x: Tensor, graphs: GraphBatch, guard: bool, *, states: bool = False, energies: bool = False
    ) -> Steps | None:
        """What :meth:`solve` finds with a fixed step, from a layer that has a shorter way to it; by default None.

        Args:
            x: `[num_nodes, channels]`.
            graphs: The graphs.
            guard: Whether the steps are guarded.
            states: Whether the states after every step are asked for.
            energies: Whether their energies are.
        """
        return None

    def solve(
        self,
        x: Tensor,
        edge_index: Tensor | GraphBatch,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
        *,
        saveat: Tensor | Sequence[float] | str | None = None,
        stop: Stop | None = None,
        throw: bool = True,
        progress: bool = False,
    ) -> Solution[Tensor]:
        """The whole solution, with the states on the way and, where the field has one, their energies.

        The arguments are those of the layer and of :meth:`lyapflow.Flow.solve`; `saveat="steps"` keeps every step.
        """
        check_features("x", x, self.channels)
        graphs = as_graphs(edge_index, x.shape[0], edge_attr, batch, batch_size)
        if self.guard and stop is None and saveat in (None, "steps"):
            return self._take_steps(x, graphs, self.guard, saveat is not None, throw, progress)
        return self.flow(graphs).solve(self.start(x), saveat=saveat, stop=stop, throw=throw, progress=progress)

    def take_steps(
        self, x: Tensor, graphs: GraphBatch, *, guard: bool | None = None, throw: bool = True
    ) -> Solution[Tensor]:
        """The solution with the energies of all steps, at the price of one energy; see :func:`solvers.take_steps`.

        For explicit methods and fields with an energy.

        Args:
            x: `[num_nodes, channels]`.
            graphs: The graphs.
            guard: Whether the steps are guarded, by default as the layer says.
            throw: Raise an error if the energy of a graph is not finite.
        """
        check_features("x", x, self.channels)
        return self._take_steps(x, graphs, self.guard if guard is None else guard, False, throw, False)

    def _take_steps(
        self, x: Tensor, graphs: GraphBatch, guard: bool, every_step: bool, throw: bool, progress: bool
    ) -> Solution[Tensor]:
        found = self.all_steps(x, graphs, guard, states=every_step, energies=True)
        if found is None or found.energies is None:
            flow = self.flow(graphs)
            return flow.take_steps(self.start(x), guard=guard, every_step=every_step, throw=throw, progress=progress)
        states, energies = found.states, found.energies
        return steps_taken(self.bind(graphs), self.step_size, found.last, states, energies, found.scales)

    def flow(self, graphs: GraphBatch) -> Flow:
        """The field on these graphs as a flow, as the layer follows it."""
        adjoint = Checkpointed(every=1) if self.checkpoint and torch.is_grad_enabled() else None
        return Flow(self.bind(graphs), self.method, self.num_steps, self.step_size, adjoint=adjoint, guard=self.guard)

    def extra_repr(self) -> str:
        name = self.method if isinstance(self.method, str) else self.method.name
        method = "" if name == "euler" else f", method={name!r}"
        flags = "".join(f", {name}=True" for name in ("checkpoint", "guard") if getattr(self, name))
        return f"{self.channels}, num_steps={self.num_steps}, step_size={self.step_size}{method}{flags}"


def reset(module: nn.Module) -> None:
    """Draw the parameters of all parts of a module again."""
    for child in module.children():
        own = getattr(child, "reset_parameters", None)
        if callable(own):
            own()
        else:
            reset(child)


class _Nothing:
    """A field to check arguments with."""

    def __call__(self, t: Any, h: Tensor) -> Tensor:
        return torch.zeros_like(h)

    def energy(self, t: Any, h: Tensor) -> Tensor:
        return h.sum().reshape(1)
