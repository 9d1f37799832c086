"""What to look at in a graph network: smoothing, energies along a flow, influence over distance, bottlenecks.

Whatever is said of a batch is said of every graph of it on its own, `[S]`. Graphs that come last and have no nodes are
known to a :class:`GraphBatch` only; it can be given in place of `edge_index` everywhere.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor

from lyapflow.projection import at_least_single
from solvers.autograd import fresh, outside_inference_mode
from solvers.typing import PerSystem

from .batch import GraphBatch, as_graphs, check_features, count_nodes
from .conv import DynamicsConv
from .dirichlet import DirichletEnergy, edge_scale

Norm = Literal["frobenius", "sum"]

LARGEST = 2**26  # entries of a dense matrix, or of all of a batch: half a gigabyte in float64


# -- smoothing --------------------------------------------------------------------------------------------------------


def dirichlet_energy(
    x: Tensor, edge_index: Tensor | GraphBatch, batch: Tensor | None = None, normalized: bool = False
) -> PerSystem:
    """The Dirichlet energy of the features on every graph, `[S]`: see :class:`DirichletEnergy`.

    Args:
        x: `[num_nodes, d]`.
        edge_index: `[2, E]`, or a :class:`GraphBatch` instead of `batch` as well.
        batch: `[num_nodes]`, the graph that every node belongs to.
        normalized: Divide the features of a node by the square root of its degree first.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import dirichlet_energy
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> dirichlet_energy(torch.tensor([[1.0], [0.0], [-2.0]]), path)
    tensor([2.5000])
    """
    return DirichletEnergy(normalized, systems=_graphs(x, edge_index, batch))(x)


def mean_average_distance(x: Tensor, edge_index: Tensor | GraphBatch, batch: Tensor | None = None) -> PerSystem:
    r"""How much the directions of neighbours' features differ, `[S]`; 0 when a graph is smoothed over.

    .. math::
        \mathrm{MAD} = \frac{1}{|U|} \sum_{i \in U} \frac{1}{|N_i|} \sum_{j \in N_i}
        \Bigl(1 - \frac{\langle x_i, x_j \rangle}{|x_i| |x_j|}\Bigr),

    where :math:`N_i` are the nodes with an edge to i, each as often as there are edges, without i itself, and U are the
    nodes that have any. Two zero vectors are at distance 0, zero and any other at distance 1. A graph without edges
    has 0. (The first definition also leaves out the pairs at distance 0; then it jumps when two nodes become equal.)

    From "Measuring and Relieving the Over-smoothing Problem for Graph Neural Networks from the Topological View"
    (Chen et al., AAAI 2020).

    Args:
        x: `[num_nodes, d]`.
        edge_index: `[2, E]`, or a :class:`GraphBatch` instead of `batch` as well.
        batch: `[num_nodes]`, the graph that every node belongs to.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import mean_average_distance
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> mean_average_distance(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), path)
    tensor([0.5000])
    """
    graphs = _graphs(x, edge_index, batch)
    source, target = graphs.edge_index[:, graphs.edge_index[0] != graphs.edge_index[1]]
    unit = _directions(at_least_single(x))
    # Of unit vectors this is the cosine distance, without its cancellation; a zero vector lacks half.
    lacking = (unit.detach() == 0).all(1).to(unit.dtype) / 2
    distance = (unit[source] - unit[target]).square().sum(1) / 2 + (lacking[source] - lacking[target]).abs()
    degree = torch.bincount(target, minlength=graphs.num_nodes)
    of_node = unit.new_zeros(graphs.num_nodes).index_add(0, target, distance) / degree.clamp(min=1)
    of_graph = unit.new_zeros(graphs.count).index_add(0, graphs.graph_of_node, of_node)
    connected = torch.bincount(graphs.graph_of_node[degree > 0], minlength=graphs.count)
    return (of_graph / connected.clamp(min=1)).to(x.dtype)


def _directions(x: Tensor) -> Tensor:
    """The rows at length 1, at any scale; zeros stay."""
    largest = x.detach().abs().amax(1, keepdim=True) if x.shape[1] else x.new_zeros(len(x), 1)
    zero = largest == 0
    scaled = x / torch.where(zero, 1.0, largest)
    square = scaled.square().sum(1, keepdim=True)
    return scaled * torch.where(zero, 1.0, square).rsqrt()


# -- energies along a flow --------------------------------------------------------------------------------------------


def energy_per_step(
    conv: DynamicsConv,
    x: Tensor,
    edge_index: Tensor | GraphBatch,
    edge_attr: Tensor | None = None,
    batch: Tensor | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """The energy of every graph at the start and after every step of a layer's flow, `[steps + 1, S]`.

    The arguments are those of the layer. Adaptive methods choose how many steps there are, for each graph: one that has
    ended keeps its last energy.

    >>> import torch
    >>> from lyapflow import LyapunovField
    >>> from lyapflow_graph import DirichletEnergy, DynamicsConv
    >>> from lyapflow_graph.diagnostics import energy_per_step
    >>> class Diffusion(DynamicsConv):
    ...     def bind(self, graphs):
    ...         return LyapunovField(DirichletEnergy(systems=graphs))
    >>> pair = torch.tensor([[0, 1], [1, 0]])
    >>> energy_per_step(Diffusion(1, num_steps=2, step_size=0.25), torch.tensor([[2.0], [0.0]]), pair)
    tensor([[2.0000],
            [0.5000],
            [0.1250]])
    """
    if not isinstance(conv, DynamicsConv):
        raise TypeError(f"conv must be a DynamicsConv, got {type(conv).__name__}")
    solution = conv.solve(x, edge_index, edge_attr, batch, batch_size, saveat="steps")
    return solution.energy


# -- influence --------------------------------------------------------------------------------------------------------


@outside_inference_mode
def influence(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    targets: Tensor | None = None,
    sources: Tensor | None = None,
    norm: Norm = "frobenius",
    chunk: int = 64,
) -> Tensor:
    r"""How much the output at one node depends on the input at another, `[targets, sources]`.

    .. math:: I_{ij} = \Bigl\| \frac{\partial f(x)_i}{\partial x_j} \Bigr\|,

    the norm of a block of the Jacobian, `[d_out, d]`. There is one backward pass for every target and output channel;
    the function may take gradients itself, as fields do. Between nodes of different graphs it has to be 0; it is
    computed all the same, so that a leak between graphs is seen. The result cannot be differentiated.

    Args:
        function: Maps `[n, d]` to `[n, d_out]`, for instance `lambda x: conv(x, edge_index)`.
        x: `[n, d]`, where the derivatives are taken.
        targets: The nodes i, by default all.
        sources: The nodes j, by default all.
        norm: "frobenius", or "sum" for the sum of absolute entries, as in "Representation Learning on Graphs with
            Jumping Knowledge Networks" (Xu et al., ICML 2018).
        chunk: How many backward passes run at once, where the function's operations allow for it: memory for time.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import influence
    >>> influence(lambda x: torch.stack([x[0], 3 * x[0] - 4 * x[1]]), torch.ones(2, 1))
    tensor([[1., 0.],
            [3., 4.]])
    """
    check_features("x", x, None)
    if norm not in ("frobenius", "sum"):
        raise ValueError(f'norm must be "frobenius" or "sum", got {norm!r}')
    if chunk < 1:
        raise ValueError(f"chunk must be positive, got {chunk}")
    targets, sources = _checked_nodes("targets", targets, x), _checked_nodes("sources", sources, x)
    _check_size("influence", len(targets) * len(sources), "choose targets or sources")
    with torch.enable_grad():
        point = fresh(x)
        output: Any = function(point)
        if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != x.shape[0]:
            got = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"function must give [{x.shape[0]}, d_out], a row for every node, got {got}")
        chosen = output[targets].reshape(-1)
    matrix = x.new_zeros(len(targets), len(sources))
    if not chosen.requires_grad:  # it does not depend on x
        return matrix
    backward = _Backward(chosen, point)
    per_target = output.shape[1]
    for start in range(0, len(targets), max(1, chunk // max(1, per_target))):
        stop = min(len(targets), start + max(1, chunk // max(1, per_target)))
        rows = backward(start * per_target, stop * per_target)[:, sources]
        blocks = rows.reshape(stop - start, per_target, len(sources), x.shape[1])
        matrix[start:stop] = _norm_of_blocks(blocks, norm)
    return matrix


class _Backward:
    """Rows of a Jacobian: many at once until an operation turns out not to support it, then one after the other."""

    def __init__(self, output: Tensor, point: Tensor) -> None:
        self.output, self.point, self.batched = output, point, True

    def __call__(self, start: int, stop: int) -> Tensor:
        cotangents = self.output.new_zeros(stop - start, len(self.output))
        cotangents[:, start:stop].fill_diagonal_(1)
        if self.batched and stop - start > 1:
            try:
                return self._pull(cotangents, batched=True)
            except RuntimeError:  # no batching rule, or the function records its own graph in the backward pass
                self.batched = False
        rows = [self._pull(cotangent, batched=False) for cotangent in cotangents]
        return torch.stack(rows) if rows else self.point.new_zeros(0, *self.point.shape)

    def _pull(self, cotangents: Tensor, batched: bool) -> Tensor:
        (rows,) = torch.autograd.grad(
            self.output, self.point, cotangents, retain_graph=True, is_grads_batched=batched, materialize_grads=True
        )
        return rows


def _norm_of_blocks(blocks: Tensor, norm: Norm) -> Tensor:
    """`[targets, d_out, sources, d]` to `[targets, sources]`."""
    if norm == "sum":
        return blocks.abs().sum((1, 3))
    return torch.linalg.vector_norm(at_least_single(blocks), dim=(1, 3)).to(blocks.dtype)


@final
@dataclasses.dataclass(frozen=True)
class InfluenceOverDistance:
    """What :func:`influence_over_distance` found, for each graph.

    Attributes:
        mean: `[S, D + 1]`, the mean influence at distances 0 to D, the largest in the batch; nan without such a pair.
        pairs: `[S, D + 1]`, how many pairs there are.
        unreachable: `[S]`, the mean influence between nodes that no path connects; nan without such a pair.

    >>> import torch
    >>> from lyapflow_graph import influence_over_distance
    >>> found = influence_over_distance(torch.tanh, torch.zeros(2, 1), torch.tensor([[0], [1]]))
    >>> found.mean, found.pairs, found.unreachable
    (tensor([[1., 0.]]), tensor([[2, 1]]), tensor([0.]))
    """

    mean: Tensor
    pairs: Tensor
    unreachable: Tensor


def influence_over_distance(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    edge_index: Tensor | GraphBatch,
    batch: Tensor | None = None,
    *,
    targets: Tensor | None = None,
    sources: Tensor | None = None,
    norm: Norm = "frobenius",
    relative: bool = False,
    chunk: int = 64,
) -> InfluenceOverDistance:
    """The mean :func:`influence` between nodes at each distance: how it falls tells how much a network squashes.

    The distance is the number of edges on the shortest path from source to target, along their direction.

    Args:
        function: Maps `[n, d]` to `[n, d_out]`.
        x: `[n, d]`, where the derivatives are taken.
        edge_index: `[2, E]`, or a :class:`GraphBatch` instead of `batch` as well.
        batch: `[n]`, the graph that every node belongs to; pairs are made within graphs only.
        targets: The nodes whose output is looked at, by default all.
        sources: The nodes whose input is, by default all.
        norm: As for :func:`influence`.
        relative: Divide by the mean at distance 0 of the same graph.
        chunk: As for :func:`influence`.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import influence_over_distance
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> one_step = lambda x: x + 0.25 * torch.zeros_like(x).index_add(0, path[1], x[path[0]] - x[path[1]])
    >>> influence_over_distance(one_step, torch.ones(3, 1), path).mean
    tensor([[0.6667, 0.2500, 0.0000]])
    """
    graphs = _graphs(x, edge_index, batch)
    size = graphs.num_nodes * graphs.num_nodes if sources is None else graphs.num_nodes * len(sources)
    _check_size("influence_over_distance", size, "choose sources")
    matrix = influence(function, x, targets=targets, sources=sources, norm=norm, chunk=chunk)
    targets, sources = _checked_nodes("targets", targets, x), _checked_nodes("sources", sources, x)
    distance = _hops(graphs, sources)[targets]  # -1 for unreachable
    graph = graphs.graph_of_node
    within = graph[targets][:, None] == graph[sources]
    widest = int(distance.max()) if distance.numel() else 0
    # A slot for every graph and distance; the first of a graph is for what cannot be reached.
    slots = (graph[targets][:, None] * (widest + 2) + distance + 1)[within]
    count = graphs.count * (widest + 2)
    pairs = torch.bincount(slots, minlength=count).reshape(graphs.count, -1)
    total = at_least_single(x).new_zeros(count).index_add(0, slots, at_least_single(matrix)[within])
    mean = total.reshape(graphs.count, -1) / pairs  # 0 / 0 is nan, as promised
    if relative:
        mean = mean / mean[:, 1:2]
    mean = mean.to(x.dtype)
    return InfluenceOverDistance(mean[:, 1:], pairs[:, 1:], mean[:, 0])


def _hops(graphs: GraphBatch, sources: Tensor) -> Tensor:
    """`[num_nodes, sources]`, edges on the shortest path from each source to each node; -1 where there is none."""
    start, end = graphs.edge_index
    front = torch.zeros(graphs.num_nodes, len(sources), dtype=torch.bool, device=start.device)
    front[sources, torch.arange(len(sources), device=start.device)] = True
    distance = torch.where(front, 0, -1)
    hop = 0
    while bool(front.any()):
        hop += 1
        arrivals = torch.zeros_like(distance, dtype=torch.int32).index_add(0, end, front[start].int())
        front = (arrivals > 0) & (distance < 0)
        distance = torch.where(front, hop, distance)
    return distance


# -- bottlenecks ------------------------------------------------------------------------------------------------------


def effective_resistance(
    edge_index: Tensor | GraphBatch, num_nodes: int | None = None, pairs: Tensor | None = None
) -> Tensor:
    r"""The resistance between nodes when every edge is a resistor of 1, `[n, n]`, or `[P]` for chosen pairs.

    .. math:: R_{ij} = (e_i - e_j)^\top L^+ (e_i - e_j), \qquad L = D - A,

    infinite between nodes that are not connected. It is the lower the more short paths there are, and bounds how much
    a message-passing network can pass between two nodes: "Understanding Oversquashing in GNNs through the Lens of
    Effective Resistance" (Black et al., ICML 2023).

    Edges conduct both ways. An undirected one is stored in both directions and conducts 1; stored one way only it
    conducts half, as in the Dirichlet energy, whose Hessian L is. Repeated edges are parallel, loops do nothing. It is
    computed densely in float64, and refused for more than 8192 nodes.

    Args:
        edge_index: `[2, E]`, or a :class:`GraphBatch`, whose graphs are not connected.
        num_nodes: How many nodes there are, by default as many as `edge_index` names.
        pairs: `[2, P]`.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import effective_resistance
    >>> triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    >>> effective_resistance(triangle, num_nodes=4, pairs=torch.tensor([[0, 1], [1, 3]]))
    tensor([0.6667,    inf], dtype=torch.float64)
    """
    graph = _as_one_graph(edge_index, num_nodes)
    _check_size("effective_resistance", graph.num_nodes**2, "take a smaller graph")
    component = _components(graph)
    together = component[:, None] == component
    # With a constant per component added it has an inverse, which differs from L+ by a constant per component only.
    mean = together / torch.bincount(component, minlength=graph.num_nodes)[component].to(torch.float64)
    inverse = torch.linalg.inv(_laplacians(graph, graph.num_nodes, normalized=False)[0] + mean)
    diagonal = inverse.diagonal()
    resistance = diagonal[:, None] + diagonal - (inverse + inverse.T)
    resistance = torch.where(together, resistance.clamp(min=0), float("inf"))
    if pairs is None:
        return resistance
    if pairs.ndim != 2 or pairs.shape[0] != 2:
        raise ValueError(f"pairs must have shape [2, P], got {list(pairs.shape)}")
    first, second = (_checked_nodes("pairs", nodes, resistance) for nodes in pairs)
    return resistance[first, second]


def spectral_gap(
    edge_index: Tensor | GraphBatch,
    batch: Tensor | None = None,
    num_nodes: int | None = None,
    normalized: bool = True,
) -> PerSystem:
    r"""The second-smallest eigenvalue of every graph's Laplacian, `[S]`: small where there is a bottleneck.

    0 for a graph that is not connected. For a graph of one node or none it is infinite: it is the smallest value of
    :math:`\langle x, L x \rangle / \langle x, x \rangle` over x orthogonal to the first eigenvector, of which there is
    none.

    Edges count both ways, an edge stored one way only counts half, and loops add to the degrees of the normalised
    Laplacian only, all as in :class:`DirichletEnergy`, whose Hessian the Laplacian is. Computed densely in float64; a
    batch is refused when its number of graphs, times the square of the nodes of its largest, is above 2^26.

    Args:
        edge_index: `[2, E]`, or a :class:`GraphBatch` instead of `batch` and `num_nodes` as well.
        batch: `[num_nodes]`, the graph that every node belongs to.
        num_nodes: How many nodes there are, by default as many as `batch` has, or `edge_index` names.
        normalized: Of the normalised Laplacian, whose eigenvalues lie in [0, 2], or of D - A.

    >>> import torch
    >>> from lyapflow_graph.diagnostics import spectral_gap
    >>> path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    >>> spectral_gap(path), spectral_gap(path, num_nodes=4)
    (tensor([1.0000], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    if num_nodes is None:
        num_nodes = count_nodes(edge_index, batch)
    graphs = as_graphs(edge_index, num_nodes, batch=batch)
    counts = graphs.node_counts
    width = int(counts.max()) if graphs.count else 0
    if width < 2:
        return torch.full((graphs.count,), float("inf"), dtype=torch.float64, device=counts.device)
    _check_size("spectral_gap", graphs.count * width**2, "take fewer or smaller graphs at once")
    laplacians = _laplacians(graphs, width, normalized)
    # Places without a node get an eigenvalue above all others: by Gershgorin's theorem these are at most twice this.
    above = 2 * laplacians.diagonal(dim1=1, dim2=2).amax() + 1
    absent = torch.arange(width, device=counts.device) >= counts[:, None]
    gap = torch.linalg.eigvalsh(laplacians + torch.diag_embed(absent * above))[:, 1].clamp(min=0)
    parts = torch.bincount(graphs.graph_of_node[_components(graphs).unique()], minlength=graphs.count)
    gap = torch.where(parts > 1, 0.0, gap)  # not merely to rounding
    return torch.where(counts > 1, gap, float("inf"))


def _laplacians(graphs: GraphBatch, width: int, normalized: bool) -> Tensor:
    """`[S, width, width]`, with places for the nodes of the largest graph: the Hessians of the Dirichlet energies."""
    scale = edge_scale(graphs, normalized, torch.float64)
    row, place = graphs.graph_of_node * width, graphs.place_of_node
    scale = torch.ones_like(place, dtype=torch.float64) if scale is None else scale[:, 0]
    flat = torch.zeros(graphs.count * width * width, dtype=torch.float64, device=place.device)
    i, j = graphs.edge_index[:, graphs.edge_index[0] != graphs.edge_index[1]]
    for a, b, sign in ((i, i, 1), (j, j, 1), (i, j, -1), (j, i, -1)):
        flat.index_add_(0, (row[a] + place[a]) * width + place[b], sign * scale[a] * scale[b] / 2)
    return flat.reshape(graphs.count, width, width)


def _components(graphs: GraphBatch) -> Tensor:
    """`[num_nodes]`, for every node the first node that it is connected to, whichever way edges run."""
    label = torch.arange(graphs.num_nodes, device=graphs.edge_index.device)
    source, target = torch.cat([graphs.edge_index, graphs.edge_index.flip(0)], dim=1)
    while True:
        lower = label.scatter_reduce(0, target, label[source], "amin")
        lower = lower[lower]  # labels are nodes of the same component: jump ahead
        if torch.equal(lower, label):
            return label
        label = lower


# -- arguments --------------------------------------------------------------------------------------------------------


def _graphs(x: Tensor, edge_index: Tensor | GraphBatch, batch: Tensor | None) -> GraphBatch:
    check_features("x", x, None)
    return as_graphs(edge_index, x.shape[0], batch=batch)


def _as_one_graph(edge_index: Tensor | GraphBatch, num_nodes: int | None) -> GraphBatch:
    graphs = as_graphs(edge_index, count_nodes(edge_index) if num_nodes is None else num_nodes)
    return GraphBatch(graphs.edge_index, graphs.num_nodes)


def _checked_nodes(name: str, nodes: Any, x: Tensor) -> Tensor:
    if nodes is None:
        return torch.arange(x.shape[0], device=x.device)
    if not isinstance(nodes, Tensor) or nodes.ndim != 1 or nodes.is_floating_point() or nodes.dtype == torch.bool:
        raise TypeError(f"{name} must be a tensor of node numbers, got {nodes!r}")
    if nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < x.shape[0]:
        raise ValueError(f"{name} must lie in 0..{x.shape[0] - 1}, got {int(nodes.min())}..{int(nodes.max())}")
    return nodes.long()


def _check_size(name: str, entries: int, advice: str) -> None:
    if entries > LARGEST:
        raise ValueError(f"{name} needs a dense matrix of {entries} entries, more than {LARGEST}: {advice}")
