"""A backbone by its name, or from a module."""

from __future__ import annotations

from typing import Any

from torch import nn

from .base import Backbone
from .gatedgcn import GatedGCN
from .gps import GPS
from .pyg import PYG_NAMES, ModuleBackbone, PyGBackbone

BACKBONES = ("gatedgcn", "gps", *PYG_NAMES)
"""The names of all backbones."""


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
    if isinstance(gnn, nn.Module):
        made = gnn if isinstance(gnn, Backbone) else ModuleBackbone(gnn, channels, edge_dim)
        for name, wanted in (("channels", channels), ("edge_dim", edge_dim)):
            if getattr(made, name) != wanted:
                raise ValueError(f"the network has {name}={getattr(made, name)}, but {wanted} are wanted")
        return made
    if gnn == "gatedgcn":
        return GatedGCN(channels, num_layers, edge_dim, **options)
    if gnn == "gps":
        return GPS(channels, num_layers, edge_dim, **options)
    if gnn in PYG_NAMES:
        return PyGBackbone(gnn, channels, num_layers, edge_dim, **options)
    raise ValueError(f"unknown backbone {gnn!r}; known are: {', '.join(BACKBONES)}")
