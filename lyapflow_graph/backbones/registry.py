"""Backbones by name: what the package brings along, and what users register."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeVar, final

from torch import nn

from lyapflow.registry import Registry

from .base import Backbone, Layer

Edges = Literal["no", "optional", "required"]
Made = TypeVar("Made", bound=Callable[..., Backbone])


@final
@dataclasses.dataclass(frozen=True)
class BackboneEntry:
    """A backbone of the registry.

    Attributes:
        name: What it is asked for by.
        make: Called as `make(channels, num_layers, edge_dim, **options)`.
        edges: What it does with features of edges.
        options: What has its options, with their types and defaults, as arguments: a class or a function.
        layer: Makes one layer of it for :class:`GPS`, called as `layer(place, **options)`; None if it has no such.
        layer_options: What has the options of a layer as arguments.
        wraps_layer: Whether it has an option `local`, which names the backbone whose layers it has inside.

    >>> from lyapflow_graph import BACKBONES
    >>> BACKBONES["gine"].edges, BACKBONES["gps"].wraps_layer
    ('required', True)
    """

    name: str
    make: Callable[..., Backbone]
    edges: Edges
    options: Callable[..., Any]
    layer: Callable[..., Layer] | None = None
    layer_options: Callable[..., Any] | None = None
    wraps_layer: bool = False

    def check_edges(self, edges: bool) -> None:
        """That features of edges are given if and only if it can use them."""
        if edges and self.edges == "no":
            others = ", ".join(name for name, entry in BACKBONES.items() if entry.edges != "no")
            raise ValueError(f"{self.name!r} cannot use features of edges (edge_dim); these can: {others}")
        if not edges and self.edges == "required":
            raise ValueError(f"{self.name!r} needs features of edges: give edge_dim")


@final
@dataclasses.dataclass(frozen=True)
class Place:
    """Where a layer is: what the network around it settles.

    Attributes:
        channels: Features of a node.
        edges: Whether edges have features, of the same width.
        index: Of the layer, from 0.
        is_last: Whether no layer comes after it.
        norm: The name of a norm.
        act: The name of an activation.
        dropout: The share that is left out.
    """

    channels: int
    edges: bool
    index: int
    is_last: bool
    norm: str
    act: str
    dropout: float


def _entry_of(name: str, found: Any) -> BackboneEntry:
    registered = next((entry for entry in BACKBONES.values() if found in (entry, entry.make)), None)
    if registered is None and not callable(found):
        raise TypeError(f"{name} must be a backbone's class or a function that makes one, got {type(found).__name__}")
    return registered or BackboneEntry(name, found, "optional", found)


BACKBONES: Registry[BackboneEntry] = Registry("backbone", _entry_of)
"""All backbones by name, with their :class:`BackboneEntry`."""


def register_backbone(name: str, *, edges: Edges = "optional", **more: Any) -> Callable[[Made], Made]:
    """Decorate a class or a function that makes a backbone, so that it is known by a name.

    It is called as `make(channels, num_layers, edge_dim, **options)`; its further arguments with defaults are options
    that a configuration can set. The name works wherever a backbone is asked for: in `TangoConv`, in `Tango`, in TOML
    files.

    Args:
        name: A name that is still free.
        edges: Whether features of edges are used: "no", "optional" or "required".
        more: Further fields of :class:`BackboneEntry`.

    >>> from torch_geometric.nn import GraphSAGE
    >>> from lyapflow_graph import ModuleBackbone, make_backbone, register_backbone
    >>> @register_backbone("sage-of-tanh", edges="no")
    ... def sage(channels: int, num_layers: int = 1, edge_dim: int | None = None, hidden: int = 16):
    ...     return ModuleBackbone(GraphSAGE(channels, hidden, num_layers, channels, act="tanh"), channels)
    >>> make_backbone("sage-of-tanh", 8, hidden=32).channels
    8
    """

    def register(make: Made) -> Made:
        BACKBONES.add(name, BackboneEntry(name, make, edges, **{"options": make, **more}))
        return make

    return register


def make_backbone(
    gnn: str | nn.Module, channels: int, num_layers: int = 1, edge_dim: int | None = None, **options: Any
) -> Backbone:
    """A backbone by its name, one of `BACKBONES`, or from any module with `forward(x, edge_index, ...)`.

    Args:
        gnn: The name, or a module; then the number of layers and all options are its own affair.
        channels: Features of a node, in and out.
        num_layers: How many layers.
        edge_dim: Features of an edge, None where there are none.
        options: Of the backbone: `norm`, `act`, `dropout` and others.

    >>> from lyapflow_graph import make_backbone
    >>> make_backbone("gps", 16, attention="linear").channels
    16
    """
    if isinstance(gnn, str):
        entry = BACKBONES[gnn]
        entry.check_edges(edge_dim is not None)
        return entry.make(channels, num_layers, edge_dim, **options)
    from .pyg import ModuleBackbone  # which registers its own

    made = gnn if isinstance(gnn, Backbone) else ModuleBackbone(gnn, channels, edge_dim)
    for name, wanted in (("channels", channels), ("edge_dim", edge_dim)):
        if getattr(made, name) != wanted:
            raise ValueError(f"the network has {name}={getattr(made, name)}, but {wanted} are wanted")
    return made
