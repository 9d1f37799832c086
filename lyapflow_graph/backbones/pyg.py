"""Layers of PyTorch Geometric as backbones: by name, or any module of the user's."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn
from torch_geometric.nn import conv as pyg

from lyapflow.layers import MLP, activation_named

from ..batch import GraphBatch
from ..conv import reset
from .attention import heads_for
from .base import Backbone, Layer, check_settings
from .norms import Norm
from .registry import BACKBONES, BackboneEntry, Edges, Place

MakeConv = Callable[..., nn.Module]


def _attending(conv: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    def make(channels: int, edge_dim: int | None, index: int, act: str, **options: Any) -> nn.Module:
        heads = heads_for(channels, options.pop("heads", None))
        return conv(channels, channels // heads, heads=heads, edge_dim=edge_dim, **options)

    return make


def _gin(channels: int, edge_dim: int | None, index: int, act: str, **options: Any) -> nn.Module:
    return pyg.GINConv(MLP(channels, channels, channels, act), **options)


def _gine(channels: int, edge_dim: int | None, index: int, act: str, **options: Any) -> nn.Module:
    return pyg.GINEConv(MLP(channels, channels, channels, act), edge_dim=edge_dim, **options)


def _gcnii(channels: int, edge_dim: int | None, index: int, act: str, **options: Any) -> nn.Module:
    return pyg.GCN2Conv(channels, **{"alpha": 0.1, "theta": 0.5, "layer": index + 1} | options)


def _pna(
    channels: int, edge_dim: int | None, index: int, act: str, deg: Tensor | None = None, **options: Any
) -> nn.Module:
    """Without the histogram of degrees of the training set, `deg`, there is nothing to scale with."""
    scalers = ["identity"] if deg is None else ["identity", "amplification", "attenuation"]
    defaults = {"aggregators": ["mean", "min", "max", "std"], "scalers": scalers}
    known = torch.ones(2, dtype=torch.long) if deg is None else deg
    return pyg.PNAConv(channels, channels, deg=known, edge_dim=edge_dim, **defaults | options)


@final
class PlainConv(Layer):
    """A layer of PyTorch Geometric, and nothing around it."""

    def __init__(self, conv: nn.Module, takes_start: bool) -> None:
        super().__init__()
        self.conv, self.takes_start = conv, takes_start

    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        edges = {} if e is None else {"edge_attr": e}
        start = (h0,) if self.takes_start else ()
        return self.conv(h, *start, graphs.edge_index, **edges), e


@final
class _ConvLayer(Layer):
    """`h + dropout(act(norm(conv(h))))`."""

    def __init__(self, conv: Layer, channels: int, norm: str, act: str, dropout: float, residual: bool) -> None:
        super().__init__()
        self.conv, self.norm = conv, Norm(norm, channels)
        self.act, self.dropout = activation_named(act), nn.Dropout(dropout)
        self.residual = residual

    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        u, e = self.conv(h, e, h0, graphs)
        change = self.dropout(self.act(self.norm(u, graphs.graph_of_node, graphs.count)))
        return (h + change if self.residual else change), e


@final
class PyGBackbone(Backbone):
    r"""Layers of PyTorch Geometric, with a residual around each.

    .. math:: h' = h + \mathrm{dropout}(\mathrm{act}(\mathrm{norm}(\mathrm{conv}(h))))

    Args:
        name: "gcn", "gat", "gatv2", "graphsage", "gin", "gine", "gcnii", "pna", or one of :func:`register_conv`.
        channels: Features of a node, in and out.
        num_layers: How many layers.
        edge_dim: Features of an edge, None where there are none. For "gat", "gatv2", "gine" (which needs them), "pna".
        norm: "layer", "graph", "batch" or "none", see :class:`Norm`.
        act: "silu", "gelu", "tanh", "softplus", "elu", "relu" or "identity".
        dropout: In training mode.
        residual: Whether to add what comes in.
        options: Passed on to the layer, as `heads=2`.

    >>> import torch
    >>> from lyapflow_graph import PyGBackbone
    >>> gnn = PyGBackbone("gat", 8, num_layers=2, heads=2)
    >>> gnn(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(
        self,
        name: str,
        channels: int,
        num_layers: int = 1,
        edge_dim: int | None = None,
        norm: str = "layer",
        act: str = "silu",
        dropout: float = 0.0,
        residual: bool = True,
        **options: Any,
    ) -> None:
        check_settings(channels, num_layers, dropout)
        entry = BACKBONES[name]
        if entry.layer is None or entry.options is not PyGBackbone:
            raise ValueError(f"{name!r} is no layer of PyTorch Geometric: make it with make_backbone")
        entry.check_edges(edge_dim is not None)

        def layer(i: int) -> _ConvLayer:
            place = Place(channels, edge_dim is not None, i, i + 1 == num_layers, norm, act, dropout)
            return _ConvLayer(entry.layer(place, **options), channels, norm, act, dropout, residual)  # type: ignore[misc]

        super().__init__(channels, (layer(i) for i in range(num_layers)), edge_dim)
        self.name = name

    def extra_repr(self) -> str:
        return f"{self.name!r}, {super().extra_repr()}"


def register_conv(
    name: str, conv: type[nn.Module], make: MakeConv | None = None, *, edges: Edges = "no", takes_start: bool = False
) -> None:
    """Make a layer of PyTorch Geometric known by a name, as a :class:`PyGBackbone` and as a part of :class:`GPS`.

    Args:
        name: A name that is still free.
        conv: The class; its arguments with defaults are options that a configuration can set.
        make: Makes it, called as `make(channels, edge_dim, index, act, **options)` with the index of the layer and the
            name of the activation; by default `conv(channels, channels, **options)`.
        edges: Whether it takes `edge_attr`: "no", "optional" or "required".
        takes_start: Whether its `forward` gets what the first layer got as second argument.

    >>> from torch_geometric.nn import ClusterGCNConv
    >>> from lyapflow_graph import make_backbone, register_conv
    >>> register_conv("clustergcn", ClusterGCNConv)
    >>> make_backbone("clustergcn", 8, num_layers=2, diag_lambda=0.5).channels
    8
    """

    def layer(place: Place, **options: Any) -> PlainConv:
        if make is None:
            return PlainConv(conv(place.channels, place.channels, **options), takes_start)
        edge_dim = place.channels if place.edges else None
        return PlainConv(make(place.channels, edge_dim, place.index, place.act, **options), takes_start)

    BACKBONES.add(name, BackboneEntry(name, functools.partial(PyGBackbone, name), edges, PyGBackbone, layer, conv))


register_conv("gcn", pyg.GCNConv)
register_conv("gat", pyg.GATConv, _attending(pyg.GATConv), edges="optional")
register_conv("gatv2", pyg.GATv2Conv, _attending(pyg.GATv2Conv), edges="optional")
register_conv("graphsage", pyg.SAGEConv)
register_conv("gin", pyg.GINConv, _gin)
register_conv("gine", pyg.GINEConv, _gine, edges="required")
register_conv("gcnii", pyg.GCN2Conv, _gcnii, takes_start=True)
register_conv("pna", pyg.PNAConv, _pna, edges="optional")


@final
class ModuleBackbone(Backbone):
    """Any module with `forward(x, edge_index, ...)` that keeps the width, as a backbone.

    Its `forward` is also given `edge_attr`, `batch` and `batch_size`, where it has arguments of these names.

    Args:
        module: The network, as a layer or a model of PyTorch Geometric.
        channels: Features of a node, in and out.
        edge_dim: Features of an edge, None where there are none.

    >>> import torch
    >>> from torch_geometric.nn import GraphSAGE
    >>> from lyapflow_graph import ModuleBackbone
    >>> gnn = ModuleBackbone(GraphSAGE(8, 16, num_layers=2, out_channels=8, act="tanh"), 8)
    >>> gnn(torch.randn(3, 8), torch.tensor([[0, 1], [1, 2]])).shape
    torch.Size([3, 8])
    """

    def __init__(self, module: nn.Module, channels: int, edge_dim: int | None = None) -> None:
        super().__init__(channels, [_ModuleLayer(module, edge_dim)], None)
        self.edge_dim = edge_dim  # which the module takes as they are


@final
class _ModuleLayer(Layer):
    def __init__(self, module: nn.Module, edge_dim: int | None) -> None:
        super().__init__()
        self.module = module
        if edge_dim is not None and "edge_attr" not in inspect.signature(module.forward).parameters:
            raise ValueError(f"edge_dim is {edge_dim}, but the forward of {type(module).__name__} takes no edge_attr")

    def reset_parameters(self) -> None:
        own = getattr(self.module, "reset_parameters", None)
        if callable(own):
            own()
        else:
            reset(self.module)

    def forward(self, h: Tensor, e: Tensor | None, h0: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor | None]:
        return call_network(self.module, h, graphs.with_edge_attr(e)), e


def call_network(network: nn.Module, x: Tensor, graphs: GraphBatch) -> Tensor:
    """A network for graphs, as those of PyTorch Geometric, on these graphs.

    Beside `x` and `edge_index` it gets `edge_attr`, `batch` and `batch_size` where its `forward` has arguments of
    these names.
    """
    named = inspect.signature(network.forward).parameters
    known: dict[str, Any] = {"edge_attr": graphs.edge_attr, "batch": graphs.graph_of_node, "batch_size": graphs.count}
    found = network(x, graphs.edge_index, **{name: value for name, value in known.items() if name in named})
    if not isinstance(found, Tensor) or found.shape != x.shape:
        got = f"shape {list(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{type(network).__name__} must give a tensor of shape {list(x.shape)}, got {got}")
    return found
