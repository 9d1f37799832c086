"""Graph networks that keep the width of the node features: what energies and tangents on graphs are made of."""

from .attention import GraphAttention
from .base import Backbone
from .gatedgcn import GatedGCN
from .gps import GPS
from .norms import NORMS, Norm
from .pyg import ModuleBackbone, PyGBackbone, register_conv
from .registry import BACKBONES, BackboneEntry, make_backbone, register_backbone

__all__ = [
    "BACKBONES",
    "GPS",
    "NORMS",
    "Backbone",
    "BackboneEntry",
    "GatedGCN",
    "GraphAttention",
    "ModuleBackbone",
    "Norm",
    "PyGBackbone",
    "make_backbone",
    "register_backbone",
    "register_conv",
]
