"""The graphs that a state lives on: which nodes are connected, and which belong together."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from solvers import Segments, Single, Systems
from solvers.typing import PerSystem

from .kernels.adjacency import pack
from .kernels.velocity import velocity

Pool = Literal["sum", "mean", "max"]


@final
class GraphBatch(Systems):
    """Graphs side by side, as PyTorch Geometric batches them: the rows of a state are nodes, a graph is one system.

    It is made and checked once for a batch and then handed around, so that nothing about a graph has to be kept on
    modules or worked out again at every step. Nodes of a graph need not be neighbours in memory, and a graph may have
    no nodes.

    Args:
        edge_index: `[2, E]`, from the first row to the second.
        num_nodes: How many nodes there are.
        edge_attr: `[E, edge_dim]`, where edges have features.
        batch: `[num_nodes]`, the graph that every node belongs to. By default there is one graph.
        batch_size: How many graphs there are, by default up to the last one that has a node.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch
    >>> graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), num_nodes=3, batch=torch.tensor([0, 0, 1]))
    >>> graphs
    GraphBatch(graphs=2, nodes=3, edges=2)
    >>> graphs.total(torch.ones(3, 4))
    tensor([8., 4.])
    """

    edge_index: Tensor
    edge_attr: Tensor | None
    batch: Tensor | None
    num_nodes: int

    def __init__(
        self,
        edge_index: Tensor,
        num_nodes: int,
        edge_attr: Tensor | None = None,
        batch: Tensor | None = None,
        batch_size: int | None = None,
    ) -> None:
        self.edge_index = _checked_edges(edge_index, num_nodes)
        self.edge_attr = None if edge_attr is None else _checked_features(edge_attr, self.edge_index)
        self.num_nodes = num_nodes
        self.batch = None if batch is None else _checked_batch(batch, num_nodes, self.edge_index)
        if self.batch is None and batch_size not in (None, 1):
            raise ValueError(f"batch_size is {batch_size}, but without batch all nodes belong to one graph")
        self._division: Systems = Single() if self.batch is None else Segments(self.batch, batch_size)
        if self.batch is not None:
            source, target = self.batch[self.edge_index]
            if not torch.equal(source, target):
                edge = int((source != target).nonzero()[0, 0])
                a, b = self.edge_index[:, edge].tolist()
                raise ValueError(
                    f"edge_index: edge {edge} joins node {a} of graph {int(source[edge])} with node {b} of graph "
                    f"{int(target[edge])}; the graphs of a batch must not be connected"
                )
        self._worked_out: dict[str, Any] = {}  # shared with copies: all of them have the same structure

    @classmethod
    @torch.compiler.disable
    def of(cls, data: Any) -> GraphBatch:
        """The graphs of a `torch_geometric.data.Data` or `Batch`.

        >>> import torch
        >>> from torch_geometric.data import Batch, Data
        >>> from lyapflow_graph import GraphBatch
        >>> pair = Data(x=torch.ones(2, 1), edge_index=torch.tensor([[0], [1]]))
        >>> GraphBatch.of(Batch.from_data_list([pair, pair]))
        GraphBatch(graphs=2, nodes=4, edges=2)
        """
        if getattr(data, "edge_index", None) is None:
            raise ValueError(f"the data has no edge_index, only {data.keys()}")
        batch = getattr(data, "batch", None)
        size = None if batch is None else getattr(data, "num_graphs", None)
        return cls(data.edge_index, data.num_nodes, getattr(data, "edge_attr", None), batch, size)

    # -- as systems -------------------------------------------------------------------------------------------------

    def bind(self, state: Tensor) -> GraphBatch:
        if state.ndim == 0 or state.shape[0] != self.num_nodes:
            rows = "a scalar" if state.ndim == 0 else f"{state.shape[0]} rows"
            raise ValueError(f"the graphs have {self.num_nodes} nodes, but the state is {rows}")
        if state.device != self.edge_index.device:
            raise ValueError(f"edge_index is on {self.edge_index.device}, but the state is on {state.device}")
        bound = copy.copy(self)
        bound._division = self._division.bind(state)
        return bound

    @property
    def count(self) -> int:
        return self._division.count

    @property
    def sizes(self) -> PerSystem:
        return self._division.sizes

    def total(self, x: Tensor) -> Tensor:
        return self._division.total(x)

    def spread(self, x: Tensor) -> Tensor:
        return self._division.spread(x)

    def largest(self, x: Tensor) -> PerSystem:
        return self._division.largest(x)

    def combine(self, direction: Tensor, gradient: Tensor, alpha: float | Tensor, beta: float | Tensor) -> Tensor:
        a, b = (x if isinstance(x, Tensor) else gradient.new_full((self.count,), x) for x in (alpha, beta))
        found = velocity(direction, gradient, a, b, self, self.batch)
        return super().combine(direction, gradient, alpha, beta) if found is None else found

    # -- as graphs --------------------------------------------------------------------------------------------------

    def with_edge_attr(self, edge_attr: Tensor | None) -> GraphBatch:
        """The same graphs with other features of edges."""
        other = copy.copy(self)
        other.edge_attr = None if edge_attr is None else _ordinary(edge_attr)
        return other

    @property
    def num_edges(self) -> int:
        return self.edge_index.shape[1]

    @property
    def graph_of_node(self) -> Tensor:
        """`[num_nodes]`, the graph that every node belongs to; zeros for one graph."""
        if self.batch is not None:
            return self.batch
        return self._once("graph_of_node", lambda: self.edge_index.new_zeros(self.num_nodes))

    @property
    def graph_of_edge(self) -> Tensor:
        """`[E]`, the graph that every edge belongs to."""
        return self._once("graph_of_edge", lambda: self.graph_of_node[self.edge_index[1]])

    @property
    def node_counts(self) -> Tensor:
        """`[S]`, how many nodes each graph has."""
        return self._once("node_counts", lambda: torch.bincount(self.graph_of_node, minlength=self.count))

    @property
    def node_ptr(self) -> Tensor | None:
        """`[S + 1]`, where the nodes of each graph begin; None where those of a graph are not neighbours."""
        return self._once("node_ptr", self._begins)

    def _begins(self) -> Tensor | None:
        if self.batch is not None and bool((self.batch.diff() < 0).any()):
            return None
        return torch.cat([self.node_counts.new_zeros(1), self.node_counts.cumsum(0)])

    @property
    def largest_graph(self) -> int:
        """How many nodes the largest graph has."""
        return self._once("largest_graph", lambda: int(self.node_counts.max()) if self.count else 0)

    def share_of_node(self, dtype: torch.dtype) -> Tensor:
        """`[S]`, one over the number of nodes of each graph; 1 where it has none."""
        return self._once(f"share_of_node {dtype}", lambda: 1 / self.node_counts.clamp(min=1).to(dtype))

    @property
    def packed_edges(self) -> Tensor:
        """The edges by target and by source, as :func:`gated_sums` takes them."""
        return self._once("packed_edges", lambda: pack(self.edge_index, self.num_nodes))

    @property
    def place_of_node(self) -> Tensor:
        """`[num_nodes]`, the place of every node among those of its graph."""
        return self._once("place_of_node", self._places)

    def _places(self) -> Tensor:
        graph, counts = self.graph_of_node, self.node_counts
        order = torch.argsort(graph, stable=True)
        place = torch.empty_like(graph)
        place[order] = torch.arange(self.num_nodes, device=graph.device) - (counts.cumsum(0) - counts)[graph[order]]
        return place

    def pool(self, x: Tensor, how: Pool) -> Tensor:
        """One row for every graph, of those of its nodes: `[num_nodes, d]` to `[S, d]`; zeros where it has none."""
        if how not in ("sum", "mean", "max"):
            raise ValueError(f'pool must be "sum", "mean" or "max", got {how!r}')
        if how == "max":
            if self.num_nodes == 0:
                return x.new_zeros(self.count, x.shape[1])
            index = self.graph_of_node[:, None].expand_as(x)
            return x.new_zeros(self.count, x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
        if self.batch is None:
            rows = x.sum(0, keepdim=True)
        else:
            rows = x.new_zeros(self.count, x.shape[1]).index_add(0, self.batch, x)
        return rows if how == "sum" else rows * self.share_of_node(x.dtype)[:, None]

    def paddings(self, limit: float) -> tuple[Padding | None, Padding | None]:
        """How to lay out graphs as a block: those of at most `limit` nodes, and the others; None where there are none.

        >>> import torch
        >>> from lyapflow_graph import GraphBatch
        >>> graphs = GraphBatch(torch.empty(2, 0, dtype=torch.long), 4, batch=torch.tensor([0, 0, 1, 0]))
        >>> small, large = graphs.paddings(limit=1)
        >>> small.pad(torch.arange(4.0)), large.pad(torch.arange(4.0))
        (tensor([[2.]]), tensor([[0., 1., 3.]]))
        """
        return self._once(f"paddings {limit}", lambda: self._divide(limit))

    def _divide(self, limit: float) -> tuple[Padding | None, Padding | None]:
        counts = self.node_counts
        small, large = (chosen.nonzero()[:, 0] for chosen in ((counts > 0) & (counts <= limit), counts > limit))
        return Padding.of(self, small) if len(small) else None, Padding.of(self, large) if len(large) else None

    def __deepcopy__(self, memo: dict[int, Any]) -> GraphBatch:
        """A copy for itself: features of edges that were computed by an encoder are data in it, with no way back."""
        twin = copy.copy(self)
        memo[id(self)] = twin
        twin.__dict__ = copy.deepcopy({name: _without_history(value) for name, value in self.__dict__.items()}, memo)
        return twin

    @torch.compiler.disable
    def _once(self, name: str, make: Any) -> Any:
        if name not in self._worked_out:
            # It is kept: it may be part of a gradient later, or outlive a transform of torch.func that it is made in.
            with torch.inference_mode(False), temporarily_clear_interpreter_stack():
                self._worked_out[name] = make()
        return self._worked_out[name]

    def __repr__(self) -> str:
        features = "" if self.edge_attr is None else f", edge_attr={list(self.edge_attr.shape)}"
        return f"GraphBatch(graphs={self.count}, nodes={self.num_nodes}, edges={self.num_edges}{features})"


@final
@dataclasses.dataclass(frozen=True)
class Padding:
    """Where a node sits when graphs of different sizes are laid out as one block. Every graph has a node at least.

    Attributes:
        nodes: Which nodes are in the block, None for all of them in any order.
        slot: The place of each of them among all places, counted graph by graph.
        present: `[graphs, width]`, whether there is a node; the largest graph has `width` nodes.
        full: Whether there is one in every place.
    """

    nodes: Tensor | None
    slot: Tensor
    present: Tensor
    full: bool

    @classmethod
    def of(cls, graphs: GraphBatch, chosen: Tensor) -> Padding:
        """For the graphs `chosen`."""
        row = torch.full_like(graphs.node_counts, -1)
        row[chosen] = torch.arange(len(chosen), device=row.device)
        row, place = row[graphs.graph_of_node], graphs.place_of_node
        nodes = None if len(chosen) == graphs.count else (row >= 0).nonzero()[:, 0]
        if nodes is not None:
            row, place = row[nodes], place[nodes]
        sizes = graphs.node_counts[chosen]
        width = int(sizes.max())
        present = torch.arange(width, device=row.device) < sizes[:, None]
        return cls(nodes, row * width + place, present, full=bool(present.all()))

    def pad(self, x: Tensor) -> Tensor:
        """`[num_nodes, ...]` to `[graphs, width, ...]`, zeros where there is no node."""
        x = x if self.nodes is None else x[self.nodes]
        block = x.new_zeros(self.present.numel(), *x.shape[1:]).index_copy(0, self.slot, x)
        return block.reshape(*self.present.shape, *x.shape[1:])

    def unpad(self, block: Tensor) -> Tensor:
        """The rows of the block's nodes."""
        return block.flatten(0, 1)[self.slot]


@torch.compiler.disable  # it looks at values
@torch.compiler.disable  # the checks look at values
def as_graphs(
    edge_index: Tensor | GraphBatch,
    num_nodes: int,
    edge_attr: Tensor | None = None,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> GraphBatch:
    """The graphs of a call, which may have been given as such."""
    if not isinstance(edge_index, GraphBatch):
        return GraphBatch(edge_index, num_nodes, edge_attr, batch, batch_size)
    if edge_attr is not None or batch is not None or batch_size is not None:
        raise ValueError("a GraphBatch holds edge_attr and batch already; do not give them again")
    if edge_index.num_nodes != num_nodes:
        raise ValueError(f"x has {num_nodes} rows, but the graphs have {edge_index.num_nodes} nodes")
    return edge_index


def count_nodes(edge_index: Tensor | GraphBatch, batch: Tensor | None = None) -> int:
    """How many nodes there are, where nobody says so."""
    if isinstance(edge_index, GraphBatch):
        return edge_index.num_nodes
    if batch is not None:
        return len(batch)
    return int(edge_index.max()) + 1 if edge_index.numel() else 0


def graphs_of(module: Any) -> GraphBatch:
    """The graphs that a component of a field is bound to."""
    if not isinstance(module.systems, GraphBatch):
        name, kind = type(module).__name__, type(module.systems).__name__
        raise TypeError(f"{name} lives on graphs: bind it with .bind(GraphBatch(...)); its systems are {kind}()")
    return module.systems


def check_features(name: str, x: Any, width: int | None, graphs: GraphBatch | None = None) -> None:
    """That `x` is `[num_nodes, width]`, of a floating point type, and finite."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.ndim != 2 or (width is not None and x.shape[1] != width):
        wanted = "d" if width is None else width
        raise ValueError(f"{name} must have shape [num_nodes, {wanted}], got {list(x.shape)}")
    if not x.is_floating_point():
        raise TypeError(f"{name} must be of a floating point type, got {x.dtype}; call {name}.float()")
    if graphs is not None and x.shape[0] != graphs.num_nodes:
        raise ValueError(f"{name} has {x.shape[0]} rows, but the graphs have {graphs.num_nodes} nodes")
    if not bool(torch.isfinite(x).all()):
        node = int((~torch.isfinite(x)).any(1).nonzero()[0, 0])
        raise ValueError(f"{name} is not finite at node {node}: {x[node].tolist()[:8]}; clean the features first")


def _checked_edges(edge_index: Any, num_nodes: int) -> Tensor:
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index must be a tensor of shape [2, E], got {type(edge_index).__name__}")
    if edge_index.layout != torch.strided:
        raise TypeError(f"edge_index must be a dense tensor of shape [2, E], got one of layout {edge_index.layout}")
    if type(edge_index) is not Tensor and hasattr(edge_index, "as_tensor"):  # torch_geometric.EdgeIndex
        edge_index = edge_index.as_tensor()
    _check_integers("edge_index", edge_index)
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index must have shape [2, E], got {list(edge_index.shape)}")
    if edge_index.numel():
        low, high = (int(end) for end in torch.aminmax(edge_index))
        if low < 0 or high >= num_nodes:
            raise ValueError(f"edge_index must lie in 0..{num_nodes - 1} for {num_nodes} nodes, got {low}..{high}")
    return _ordinary(edge_index.long())


def _checked_features(edge_attr: Any, edge_index: Tensor) -> Tensor:
    if not isinstance(edge_attr, Tensor):
        raise TypeError(f"edge_attr must be a tensor, got {type(edge_attr).__name__}")
    if edge_attr.ndim == 1:
        edge_attr = edge_attr[:, None]
    if edge_attr.ndim != 2 or edge_attr.shape[0] != edge_index.shape[1]:
        shape = f"[{edge_index.shape[1]}, edge_dim]"
        raise ValueError(f"edge_attr must have shape {shape}, one row for each edge, got {list(edge_attr.shape)}")
    if not bool(torch.isfinite(edge_attr).all()):
        raise ValueError("edge_attr is not finite; clean the features first")
    return _ordinary(edge_attr)


def _checked_batch(batch: Any, num_nodes: int, edge_index: Tensor) -> Tensor:
    if not isinstance(batch, Tensor):
        raise TypeError(f"batch must be a tensor, got {type(batch).__name__}")
    _check_integers("batch", batch)
    if batch.shape != (num_nodes,):
        raise ValueError(f"batch must have one entry for each of the {num_nodes} nodes, got shape {list(batch.shape)}")
    if batch.device != edge_index.device:
        raise ValueError(f"batch is on {batch.device}, but edge_index is on {edge_index.device}")
    return _ordinary(batch.long())


def _check_integers(name: str, x: Tensor) -> None:
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} must hold integers, got {x.dtype}")


def _without_history(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _ordinary(x: Tensor) -> Tensor:
    """What was made in inference mode cannot be part of a gradient, which an energy has to take."""
    if not x.is_inference():
        return x
    with torch.inference_mode(False):
        return x.clone()
