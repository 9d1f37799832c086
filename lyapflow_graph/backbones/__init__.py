"""Graph networks that keep the width of the node features: what energies and tangents on graphs are made of."""

from .attention import GraphAttention
from .base import Backbone
from .by_name import BACKBONES, make_backbone
from .gatedgcn import GatedGCN
from .gps import GPS
from .norms import NORMS, Norm
from .pyg import ModuleBackbone, PyGBackbone

__all__ = [
    "BACKBONES",
    "GPS",
    "NORMS",
    "Backbone",
    "GatedGCN",
    "GraphAttention",
    "ModuleBackbone",
    "Norm",
    "PyGBackbone",
    "make_backbone",
]
