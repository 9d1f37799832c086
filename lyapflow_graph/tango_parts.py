"""The parts of TANGO: an energy, a tangent and coefficients on graphs."""

from __future__ import annotations

import warnings
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from lyapflow import Coefficient, Energy, Tangent
from lyapflow.layers import MLP, activation_named
from solvers import Systems
from solvers.typing import PerSystem

from .backbones import Backbone, GatedGCN, GraphAttention
from .backbones.gatedgcn import is_watched
from .batch import graphs_of
from .kernels import SiLU, with_kernels
from .kernels.flow import MapWeights
from .kernels.layer import HeadWeights, LayerWeights, fits, gated_energy

Reduction = Literal["sum", "mean"]


@final
class GraphEnergy(Energy):
    r"""A learned energy of every graph, from what a graph network says of each of its nodes.

    .. math::
        \tilde H = \mathrm{act}(\mathrm{GNN}(H)), \qquad v = \mathrm{MLP}(\tilde H), \qquad
        V = \sum_i v_i^2 \quad\text{or}\quad V = \frac{1}{n} \sum_i v_i^2.

    Its features, for a coefficient that takes them, are :math:`\tilde H`. With the mean the gradient at a node falls
    like 1/n, and on large graphs the descent vanishes; with the sum it does not depend on the size of the graph.

    Args:
        gnn: The graph network. Dropout and batch normalisation in it would make the energy depend on chance or on the
            other graphs of the batch; a warning says so.
        act: The activation after it, and of the perceptron. ReLU has no second derivative to learn from.
        reduction: "sum" or "mean", over the nodes of a graph.
        systems: The graphs, a :class:`GraphBatch`; or give them by `bind(graphs)`.

    >>> import torch
    >>> from lyapflow_graph import GatedGCN, GraphBatch, GraphEnergy
    >>> graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), num_nodes=3, batch=torch.tensor([0, 0, 1]))
    >>> GraphEnergy(GatedGCN(4), systems=graphs)(torch.randn(3, 4)).shape
    torch.Size([2])
    """

    def __init__(
        self, gnn: Backbone, act: str = "silu", reduction: Reduction = "sum", systems: Systems | None = None
    ) -> None:
        super().__init__(systems)
        if reduction not in ("sum", "mean"):
            raise ValueError(f'reduction must be "sum" or "mean", got {reduction!r}')
        _check_fit_for_energy(gnn)
        self.gnn = gnn
        self.act = with_kernels(activation_named(act))
        self.head = with_kernels(MLP(gnn.channels, gnn.channels, 1, act))
        self.reduction: Reduction = reduction

    def forward(self, h: Tensor) -> PerSystem:
        return self.value_and_features(h)[0]

    def value_and_features(self, h: Tensor) -> tuple[PerSystem, Tensor]:  # type: ignore[override]
        graphs = graphs_of(self)
        features = self.act(self.gnn(h, graphs))
        value = graphs.total(self.head(features).square())
        if self.reduction == "mean":
            value = value * graphs.share_of_node(value.dtype)
        return value, features

    def with_gradient(self, h: Tensor, **taken: Any) -> tuple[PerSystem, Tensor, Tensor] | None:
        """The energy, its features and its gradient by kernels, where the network is a :class:`GatedGCN`."""
        gnn, weights = self.gnn, self.weights()
        if not isinstance(gnn, GatedGCN) or weights is None or is_watched(self):
            return None
        layers, head = weights
        if layers[0].norm_weight is None or not fits(h, *head, *(x for layer in layers for x in layer)):
            return None
        graphs = graphs_of(self)
        share = graphs.share_of_node(h.dtype) if self.reduction == "mean" else None
        seed = None if share is None else share[graphs.graph_of_node]
        density, features, gradient = gated_energy(
            h, gnn.of_edges(graphs, h), layers, head, graphs.packed_edges, seed, gnn.form
        )
        value = graphs.total(density)
        return (value if share is None else value * share), features, gradient

    def weights(self) -> tuple[list[LayerWeights], HeadWeights] | None:
        """The parameters of the network and of the perceptron, if they are of the kind that has kernels as a whole."""
        layers = self.gnn.as_gated_layers() if isinstance(self.gnn, GatedGCN) else None
        head = weights_of_perceptron(self.head)
        return None if layers is None or head is None or type(self.act) is not SiLU else (layers, head)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


def weights_of_perceptron(head: nn.Module) -> HeadWeights | None:
    """Its parameters, if it has one hidden layer and SiLU."""
    parts = list(head.children())
    if [type(part) for part in parts] not in ([nn.Linear, SiLU, nn.Linear], [nn.Linear, nn.SiLU, nn.Linear]):
        return None
    below, _, above = parts
    return HeadWeights(below.weight, below.bias, above.weight, above.bias)  # type: ignore[arg-type]


def _check_fit_for_energy(gnn: Backbone) -> None:
    for part in gnn.modules():
        if isinstance(part, GraphAttention) and part.fused:
            raise ValueError("fused attention has no second derivative: an energy cannot have it, a tangent may")
        random = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
        coupled = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if random or coupled:
            why = "changes from call to call" if random else "depends on the other graphs of a batch"
            name = type(part).__name__
            warnings.warn(
                f"{name} in the network of an energy: in training mode the energy {why}, and nothing is promised",
                stacklevel=3,
            )
            return


@final
class GraphTangent(Tangent):
    r"""A learned direction on graphs, :math:`M = \mathrm{act}(\mathrm{GNN}(H))`, or :math:`W M + b` with a linear map;
    its features are the direction itself.

    Args:
        gnn: The graph network.
        act: The activation after it. After ReLU no entry of the direction could be negative: "identity" and "tanh"
            let it point anywhere.
        linear: Whether a linear map comes last. A network that adds what comes in has the state itself as part of its
            direction, and one that does not ends with an activation that is hardly ever negative; the map undoes
            either.
        systems: The graphs, a :class:`GraphBatch`; or give them by `bind(graphs)`.

    >>> import torch
    >>> from lyapflow_graph import GatedGCN, GraphBatch, GraphTangent
    >>> graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), num_nodes=3)
    >>> GraphTangent(GatedGCN(4), systems=graphs)(torch.randn(3, 4)).shape
    torch.Size([3, 4])
    """

    def __init__(
        self, gnn: Backbone, act: str = "identity", linear: bool = False, systems: Systems | None = None
    ) -> None:
        super().__init__(systems)
        self.gnn = gnn
        self.act = with_kernels(activation_named(act))
        self.map = nn.Linear(gnn.channels, gnn.channels) if linear else None

    def weights(self) -> tuple[list[LayerWeights], MapWeights | None] | None:
        """The parameters of the network and of the map, if they are of the kind that has kernels as a whole."""
        layers = self.gnn.as_gated_layers() if isinstance(self.gnn, GatedGCN) else None
        if layers is None or type(self.act) is not nn.Identity:
            return None
        return layers, None if self.map is None else MapWeights(self.map.weight, self.map.bias)

    def forward(self, h: Tensor) -> Tensor:
        direction = self.act(self.gnn(h, graphs_of(self)))
        return direction if self.map is None else self.map(direction)


@final
class PooledCoefficient(Coefficient):
    """A coefficient of every graph: a perceptron on the features of its nodes, pooled.

    Args:
        channels: Features of a node.
        within: "sigmoid" for [0, 1] (`alpha`), "real" for any sign (`beta`).
        pool: "mean" or "sum". The sum grows with the graph: on large ones a sigmoid saturates, and a coefficient of
            any sign explodes.
        act: The activation of the perceptron.
        gain: Multiplies the initial weights of its last layer. A small one lets training start near one value for all
            graphs.
        start: The initial bias of the last layer: about the value that training starts from, before the sigmoid if
            there is one. None draws it like the weights.
        systems: The graphs, a :class:`GraphBatch`; or give them by `bind(graphs)`.

    >>> import torch
    >>> from lyapflow_graph import GraphBatch, PooledCoefficient
    >>> graphs = GraphBatch(torch.tensor([[0, 1], [1, 0]]), num_nodes=3, batch=torch.tensor([0, 0, 1]))
    >>> PooledCoefficient(4, systems=graphs)(torch.zeros(3, 4), features=torch.randn(3, 4)).shape
    torch.Size([2])
    """

    takes = ("features",)

    def __init__(
        self,
        channels: int,
        within: Literal["sigmoid", "real"] = "sigmoid",
        pool: Literal["mean", "sum"] = "mean",
        act: str = "silu",
        gain: float = 1.0,
        start: float | None = None,
        systems: Systems | None = None,
    ) -> None:
        super().__init__(systems)
        if within not in ("sigmoid", "real"):
            raise ValueError(f'within must be "sigmoid" or "real", got {within!r}')
        if pool not in ("mean", "sum"):
            raise ValueError(f'pool must be "mean" or "sum", got {pool!r}')
        self.head = MLP(channels, channels, 1, act)
        self.within, self.pool, self.gain, self.start = within, pool, gain, start
        self._start_small()

    def reset_parameters(self) -> None:
        """Draw all parameters again."""
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        self._start_small()

    def _start_small(self) -> None:
        with torch.no_grad():
            for parameter in self.head[-1].parameters():
                parameter.mul_(self.gain)
            if self.start is not None:
                last = self.head[-1]
                assert isinstance(last, nn.Linear)
                last.bias.fill_(self.start)

    def forward(self, h: Tensor, features: Tensor) -> PerSystem:  # type: ignore[override]
        value = self.head(graphs_of(self).pool(features, self.pool)).squeeze(-1)
        return value.sigmoid() if self.within == "sigmoid" else value

    def extra_repr(self) -> str:
        return f"within={self.within!r}, pool={self.pool!r}"
