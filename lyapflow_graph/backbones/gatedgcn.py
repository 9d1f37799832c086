"""GatedGCN: gated sums over neighbours, normalised or not, with states of edges."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from lyapflow.layers import activation_named

from ..batch import GraphBatch
from ..kernels import gated_sums, gated_update
from ..kernels.gated import CLOSED
from ..kernels.layer import Form, LayerWeights, fits, gated_layer
from .base import Backbone, Layer, check_settings
from .norms import Norm, RowNorm
from .registry import Place, register_backbone


@final
class GatedGCNLayer(Layer):
    """One layer of :class:`GatedGCN`; `updates_edges` is for all but the last, whose edge states nobody reads."""

    adds_input = True

    def __init__(
        self, channels: int, edges: bool, updates_edges: bool, norm: str, act: str, dropout: float, form: Form
    ) -> None:
        super().__init__()
        # E, B, D and A side by side: one product instead of four. E and B are read together, at the source of an edge.
        self.of_nodes = nn.Linear(channels, 4 * channels)
        self.of_edges = nn.Linear(channels, channels) if edges else None
        self.norm = Norm(norm, channels)
        self.edge_norm = Norm(norm, channels) if edges and updates_edges else None
        self.act = activation_named(act)
        self.dropout = nn.Dropout(dropout)
        self.form = form

    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        of_edges = None if e is None or self.of_edges is None else self.of_edges(e)
        weights = None if e is not None and self.edge_norm is not None else self.weights()
        if weights is not None and fits(h, of_edges, *weights) and not is_watched(self):
            if not self.training or self.dropout.p == 0:
                return gated_layer(h, of_edges, weights, graphs.packed_edges, self.form), e
            change = gated_layer(h, of_edges, weights, graphs.packed_edges, self.form._replace(residual=False))
            return self._added(h, self.dropout(change)), e
        to_source, value, to_target, own = self.of_nodes(h).chunk(4, dim=1)
        total, weight = gated_sums(to_target, to_source, value, of_edges, graphs.packed_edges)
        change = self.dropout(self._update(own, total, weight, graphs))
        if e is not None and self.edge_norm is not None:
            source, target = graphs.edge_index
            z = to_target[target] + to_source[source] + of_edges
            e = e + self.dropout(self.act(self.edge_norm(z, graphs.graph_of_edge, graphs.count)))
        return self._added(h, change), e

    def weights(self) -> LayerWeights | None:
        """Its parameters, if it is of the kind that has kernels as a whole."""
        of_nodes, norm = self.of_nodes, self.norm.module
        if type(of_nodes) is not nn.Linear or type(self.act) is not nn.SiLU:
            return None
        if type(norm) is nn.Identity:
            return LayerWeights(of_nodes.weight, of_nodes.bias, None, None)
        if type(norm) is not RowNorm:
            return None
        return LayerWeights(of_nodes.weight, of_nodes.bias, norm.weight, norm.bias)

    def _added(self, h: Tensor, change: Tensor) -> Tensor:
        return h + change if self.form.residual else change

    def _update(self, own: Tensor, total: Tensor, weight: Tensor, graphs: GraphBatch) -> Tensor:
        if not self.form.normalize:
            return self.act(self.norm(own + total, graphs.graph_of_node, graphs.count))
        norm = self.norm.module
        if isinstance(norm, RowNorm) and isinstance(self.act, nn.SiLU) and own.dtype == norm.weight.dtype:
            return gated_update(own, total, weight, norm.weight, norm.bias)
        u = own + total / (weight + CLOSED)
        return self.act(self.norm(u, graphs.graph_of_node, graphs.count))


def _layer(place: Place, normalize: bool = True) -> GatedGCNLayer:
    """As message passing in GPS."""
    form = Form(normalize=normalize)
    return GatedGCNLayer(place.channels, place.edges, not place.is_last, place.norm, place.act, place.dropout, form)


@register_backbone("gatedgcn", layer=_layer, layer_options=_layer)
@final
class GatedGCN(Backbone):
    r"""The gated graph network of Bresson and Laurent, *Residual gated graph convnets* (2017), as benchmarks use it.

    For an edge from j to i, with five linear maps and their biases,

    .. math::
        z_{ij} &= D h_i + E h_j + C e_{ij}, \qquad s_{ij} = \mathrm{sigmoid}(z_{ij}), \qquad
        \eta_{ij} = \frac{s_{ij}}{\sum_k s_{ik} + 10^{-6}}, \\
        u_i &= A h_i + \sum_j \eta_{ij} \odot B h_j, \\
        h_i' &= h_i + \mathrm{dropout}(\mathrm{act}(\mathrm{norm}(u_i))), \qquad
        e_{ij}' = e_{ij} + \mathrm{dropout}(\mathrm{act}(\mathrm{norm}(z_{ij}))),

    without C and edge states where there are no features of edges. It is not PyTorch Geometric's `ResGatedGraphConv`,
    which has neither edge states nor norm nor residual, and whose gates are not normalised: they are :math:`\eta_{ij} =
    s_{ij}`, as in the first paper, with `normalize=False`. Normalised gates make a mean of the neighbours, which says
    nothing of how many there are; where that counts, as for distances, diameters or Laplacians, sums learn much faster.

    Args:
        channels: Features of a node, in and out.
        num_layers: How many layers.
        edge_dim: Features of an edge, None where there are none.
        norm: "layer", "graph", "batch" or "none", see :class:`Norm`.
        act: "silu", "gelu", "tanh", "softplus", "elu", "relu" or "identity".
        dropout: In training mode.
        residual: Whether to add what comes in.
        normalize: Whether the gates of a node add up to one, as in benchmarks, or are as they come.

    >>> import torch
    >>> from lyapflow_graph import GatedGCN
    >>> gnn = GatedGCN(8, num_layers=2, edge_dim=3)
    >>> gnn(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]]), torch.randn(2, 3)).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        channels: int,
        num_layers: int = 1,
        edge_dim: int | None = None,
        norm: str = "layer",
        act: str = "silu",
        dropout: float = 0.0,
        residual: bool = True,
        normalize: bool = True,
    ) -> None:
        check_settings(channels, num_layers, dropout)
        edges, form = edge_dim is not None, Form(residual, normalize)
        layers = (
            GatedGCNLayer(channels, edges, i + 1 < num_layers, norm, act, dropout, form) for i in range(num_layers)
        )
        super().__init__(channels, layers, edge_dim)
        self.form = form

    def as_gated_layers(self) -> list[LayerWeights] | None:
        """The parameters of its layers, if they are of the kind that has kernels as a whole.

        Not with more than one layer and features of edges, whose states then depend on those of the nodes, and not
        with dropout at work.
        """
        layers: list[Any] = list(self.layers)
        if (len(layers) > 1 and self.edge_dim is not None) or (self.training and layers[0].dropout.p > 0):
            return None
        weights = [layer.weights() for layer in layers]
        return None if None in weights else weights

    def of_edges(self, graphs: GraphBatch, x: Tensor) -> Tensor | None:
        """What the first layer's gates get from the features of edges."""
        e, layer = self._edges(graphs, x), self.layers[0]
        return None if e is None else layer.of_edges(e)  # type: ignore[operator]


def is_watched(module: nn.Module) -> bool:
    """Whether anything looks at what goes in and out of the parts of a module, which kernels pass by."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
