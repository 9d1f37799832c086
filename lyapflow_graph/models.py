"""Whole models: an encoder, something on graphs in the middle, and a readout for nodes or graphs."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final, get_args

import torch
from torch import Tensor, nn

from lyapflow import LyapunovField
from lyapflow.layers import activation_named
from solvers import Solution

from .batch import GraphBatch, Pool, as_graphs, check_features
from .conv import reset
from .encoders import CategoricalEncoder, PositionalEncoder
from .tango import TangoConv

Task = Literal["node", "graph"]
ReadoutPool = Literal["mean", "sum", "max", "all"]
Encodings = Mapping[str, Tensor]


class GraphModel(nn.Module, ABC):
    """An encoder, a body that maps node features to node features, and a readout.

    It is called with a `torch_geometric.data.Data` or `Batch`, or with its tensors, and gives one row for every node
    or graph: logits for classification, values for regression.

    Args:
        in_channels: Features of a node; or how many categories each column of integer features has.
        hidden_channels: The width inside.
        out_channels: Classes, or values to predict.
        body: Called as `body(h, graphs)`.
        task: "node" or "graph".
        edge_dim: Features of an edge, None where there are none; or how many categories each column of integer
            features has.
        pe: Positional encodings: the attribute that a transform of PyTorch Geometric writes, and its width, as
            `{"random_walk_pe": 20}`. They are added to the encoded features.
        act: The activation of the readout.
        dropout: After the encoder and in the readout, in training mode.
        readout_pool: "mean", "sum" or "max" of the nodes of a graph, or "all" three side by side, where the task is
            "graph".

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph import GraphModel, Tango
    >>> model: GraphModel = Tango(in_channels=5, hidden_channels=8, out_channels=2)
    >>> h, graphs = model.encode(Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1], [1, 2]])))
    >>> h.shape, graphs
    (torch.Size([3, 8]), GraphBatch(graphs=1, nodes=3, edges=2))
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        hidden_channels: int,
        out_channels: int,
        body: nn.Module,
        task: Task,
        edge_dim: int | Sequence[int] | None,
        pe: Mapping[str, int] | None,
        act: str,
        dropout: float,
        readout_pool: ReadoutPool,
    ) -> None:
        super().__init__()
        if task not in ("node", "graph"):
            raise ValueError(f'task must be "node" or "graph", got {task!r}')
        if readout_pool not in get_args(ReadoutPool):
            raise ValueError(f'readout_pool must be "mean", "sum", "max" or "all", got {readout_pool!r}')
        self.in_channels, self.hidden_channels, self.out_channels = in_channels, hidden_channels, out_channels
        self.task: Task = task
        self.readout_pool: ReadoutPool = readout_pool
        self.node_encoder: nn.Module = (
            nn.Linear(in_channels, hidden_channels)
            if isinstance(in_channels, int)
            else CategoricalEncoder(in_channels, hidden_channels)
        )
        self.edge_encoder = (
            None if edge_dim is None or isinstance(edge_dim, int) else CategoricalEncoder(edge_dim, hidden_channels)
        )
        encoders = (PositionalEncoder(name, width, hidden_channels) for name, width in (pe or {}).items())
        self.pe_encoders = nn.ModuleList(encoders)
        self.dropout = nn.Dropout(dropout)
        self.body = body
        self._pools = get_args(Pool) if readout_pool == "all" else (readout_pool,)
        width = hidden_channels * len(self._pools) if task == "graph" else hidden_channels
        self.readout = nn.Sequential(
            nn.Linear(width, hidden_channels),
            activation_named(act),
            nn.Dropout(dropout),
            nn.Linear(hidden_channels, out_channels),
        )
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.zeros(out_channels))
        self.register_buffer("scale", torch.ones(out_channels))

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        reset(self)

    def forward(
        self,
        x: Any,
        edge_index: Tensor | GraphBatch | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        pe: Encodings | None = None,
        batch_size: int | None = None,
    ) -> Tensor:
        """`[num_nodes, out_channels]` or `[graphs, out_channels]`.

        Args:
            x: `[num_nodes, in_channels]`, or a `Data` or `Batch` instead of all the arguments.
            edge_index: `[2, E]`, or a :class:`GraphBatch` instead of `edge_attr`, `batch` and `batch_size`.
            edge_attr: `[E, edge_dim]`.
            batch: `[num_nodes]`, the graph that every node belongs to.
            pe: Positional encodings by name, each `[num_nodes, width]`.
            batch_size: How many graphs there are, by default as many as `batch` names.
        """
        h, graphs = self.encode(x, edge_index, edge_attr, batch, pe, batch_size)
        return self.decode(self.body(h, graphs), graphs)

    def decode(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        """What is said of nodes or graphs, from the features that the body gives."""
        if self.task == "graph":
            h = torch.cat([graphs.pool(h, how) for how in self._pools], dim=1)
        return self.shift + self.scale * self.readout(h)

    def standardize(self, labels: Tensor) -> None:
        """Let the readout tell labels in units of their spread, from their mean on.

        For regression on labels that are not of the size of one: weights move by about the learning rate in a step, and
        would need many to get from a start near zero to a mean of nine. What the model gives is in the units of the
        labels as before.

        Args:
            labels: `[m, out_channels]`, of the training set.
        """
        if labels.ndim != 2 or labels.shape[1] != self.out_channels or len(labels) == 0:
            raise ValueError(f"labels must have shape [m, {self.out_channels}], m > 0, got {list(labels.shape)}")
        exact = labels.double()
        spread = exact.std(0, correction=0)
        self.shift.copy_(exact.mean(0))
        self.scale.copy_(torch.where(spread > 0, spread, 1.0))

    def encode(
        self,
        x: Any,
        edge_index: Tensor | GraphBatch | None = None,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        pe: Encodings | None = None,
        batch_size: int | None = None,
    ) -> tuple[Tensor, GraphBatch]:
        """What the body gets: encoded features, and the graphs with encoded features of edges."""
        if not isinstance(x, Tensor):
            if any(given is not None for given in (edge_index, edge_attr, batch, pe, batch_size)):
                raise TypeError(f"x must be a tensor where edge_index is given as well, got {type(x).__name__}")
            data, x = x, getattr(x, "x", None)
            if x is None:
                raise ValueError(f"{type(data).__name__} has no node features x")
            graphs = GraphBatch.of(data)
            pe = {encoder.name: _attribute(data, encoder.name) for encoder in self._pe_encoders}
        elif edge_index is None:
            raise TypeError("edge_index is missing; give it, or a Data or Batch as the only argument")
        else:
            graphs = as_graphs(edge_index, x.shape[0], edge_attr, batch, batch_size)
        h = self._encode_nodes(x, pe or {}, graphs)
        if self.edge_encoder is not None and graphs.edge_attr is not None:
            graphs = graphs.with_edge_attr(self.edge_encoder(graphs.edge_attr))
        return self.dropout(h), graphs

    @property
    def _pe_encoders(self) -> list[PositionalEncoder]:
        return [encoder for encoder in self.pe_encoders if isinstance(encoder, PositionalEncoder)]

    def _encode_nodes(self, x: Tensor, pe: Encodings, graphs: GraphBatch) -> Tensor:
        if isinstance(self.in_channels, int):
            check_features("x", x, self.in_channels, graphs)
        h = self.node_encoder(x)
        names = [encoder.name for encoder in self._pe_encoders]
        if set(pe) != set(names):
            raise ValueError(f"pe must have {names or 'nothing'}, as the model was made; got {list(pe) or 'nothing'}")
        for encoder in self._pe_encoders:
            h = h + encoder(pe[encoder.name], graphs)
        return h


def _attribute(data: Any, name: str) -> Tensor:
    value = getattr(data, name, None)
    if value is None:
        raise ValueError(f"the data has no {name!r}; compute it with a transform of torch_geometric.transforms first")
    return value


@final
class GraphNet(GraphModel):
    """A backbone or any dynamics on graphs between an encoder and a readout.

    Args:
        in_channels: Features of a node; or how many categories each column of integer features has.
        hidden_channels: The width inside.
        out_channels: Classes, or values to predict.
        body: A :class:`Backbone`, a :class:`DynamicsConv`, or any module that is called as `body(h, graphs)`; made
            with `edge_dim=hidden_channels` where features of edges are categories.
        task: "node" or "graph".
        edge_dim: Features of an edge, None where there are none; or how many categories each column has.
        pe: Positional encodings and their widths, as `{"random_walk_pe": 20}`.
        act: The activation of the readout.
        dropout: After the encoder and in the readout.
        readout_pool: "mean", "sum" or "max" of the nodes of a graph, or "all" three side by side.

    >>> import torch
    >>> from lyapflow_graph import GatedGCN, GraphNet
    >>> model = GraphNet(5, 16, 3, GatedGCN(16, num_layers=4))
    >>> model(torch.randn(4, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])).shape
    torch.Size([4, 3])
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        hidden_channels: int,
        out_channels: int,
        body: nn.Module,
        task: Task = "node",
        *,
        edge_dim: int | Sequence[int] | None = None,
        pe: Mapping[str, int] | None = None,
        act: str = "silu",
        dropout: float = 0.0,
        readout_pool: ReadoutPool = "mean",
    ) -> None:
        super().__init__(
            in_channels, hidden_channels, out_channels, body, task, edge_dim, pe, act, dropout, readout_pool
        )


@final
class Tango(GraphModel):
    """TANGO as a model: an encoder, the flow of :class:`TangoConv`, and a readout.

    Args:
        in_channels: Features of a node; or how many categories each column of integer features has, as `[28]` for
            the atoms of ZINC or `ATOM_FEATURES` for those of the Open Graph Benchmark.
        hidden_channels: The width inside.
        out_channels: Classes, or values to predict.
        backbone: Of the energy and of the tangent, a name from `BACKBONES`.
        task: "node" or "graph".
        num_steps: How many steps are taken.
        step_size: Their size.
        edge_dim: Features of an edge, None where there are none; or how many categories each column has, as `[4]`
            for the bonds of ZINC or `BOND_FEATURES`.
        pe: Positional encodings and their widths, as `{"random_walk_pe": 20}` for what `AddRandomWalkPE(20)` writes
            and `{"laplacian_eigenvector_pe": 8}` for `AddLaplacianEigenvectorPE(8)`.
        share_weights: Whether all steps have the same weights. Without, every step has an energy of its own, that of
            one step says nothing about the next, and the flow as a whole has none: no certificate, no `field`.
        dropout: After the encoder, in the network of the tangent, and in the readout; not in the energy.
        readout_pool: "mean", "sum" or "max" of the nodes of a graph, or "all" three side by side, where the task is
            "graph".
        act: The activation of the flow and of the readout.
        flow: Any other argument of :class:`TangoConv`: `num_layers`, `norm`, `tangent_act`, `tangent_linear`,
            `reduction`, `pool`, `granularity`, `beta_start`, `ablation`, `method`, `checkpoint`, `backbone_options`.

    >>> import torch
    >>> from torch_geometric.data import Batch, Data
    >>> from lyapflow_graph import Tango
    >>> path = Data(x=torch.randn(3, 5), edge_index=torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]))
    >>> Tango(5, 16, 2)(path).shape
    torch.Size([3, 2])
    >>> model = Tango(5, 16, 1, task="graph", method="armijo_euler")
    >>> model(Batch.from_data_list([path, path])).shape
    torch.Size([2, 1])
    >>> energy = model.solve(path, saveat="steps").energy
    >>> energy.shape, bool((energy.diff(dim=0) <= 0).all())
    (torch.Size([9, 1]), True)
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        hidden_channels: int,
        out_channels: int,
        backbone: str = "gatedgcn",
        task: Task = "node",
        num_steps: int = 8,
        step_size: float = 0.1,
        *,
        edge_dim: int | Sequence[int] | None = None,
        pe: Mapping[str, int] | None = None,
        share_weights: bool = True,
        act: str = "silu",
        dropout: float = 0.0,
        readout_pool: ReadoutPool = "mean",
        **flow: Any,
    ) -> None:
        width = edge_dim if edge_dim is None or isinstance(edge_dim, int) else hidden_channels
        flow |= {"step_size": step_size, "edge_dim": width, "act": act, "dropout": dropout}

        def of(steps: int) -> TangoConv:
            return TangoConv(hidden_channels, backbone, num_steps=steps, **flow)

        body: nn.Module = of(num_steps) if share_weights else Chain(of(1) for _ in range(num_steps))
        super().__init__(
            in_channels, hidden_channels, out_channels, body, task, edge_dim, pe, act, dropout, readout_pool
        )

    @property
    def conv(self) -> TangoConv:
        """The flow, where all its steps share their weights."""
        if not isinstance(self.body, TangoConv):
            raise RuntimeError("with share_weights=False every step has a field and an energy of its own: see body")
        return self.body

    def field(self, data: Any) -> LyapunovField:
        """The field that the encoded features follow, on the graphs of a `Data` or `Batch`."""
        return self.conv.bind(self.encode(data)[1])

    def solve(self, data: Any, *, saveat: Any = None, throw: bool = True, progress: bool = False) -> Solution[Tensor]:
        """The flow of the encoded features on the graphs of a `Data` or `Batch`; see :meth:`DynamicsConv.solve`."""
        h, graphs = self.encode(data)
        return self.conv.solve(h, graphs, saveat=saveat, throw=throw, progress=progress)


@final
class Chain(nn.ModuleList):
    """Layers on graphs, one after the other."""

    def forward(self, h: Tensor, graphs: GraphBatch) -> Tensor:
        for layer in self:
            h = layer(h, graphs)
        return h
