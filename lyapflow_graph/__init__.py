"""Lyapunov fields on graphs: backbones, graph energies and tangents, TANGO, diagnostics, data and training."""

from .backbones import (
    BACKBONES,
    GPS,
    NORMS,
    Backbone,
    GatedGCN,
    GraphAttention,
    ModuleBackbone,
    Norm,
    PyGBackbone,
    make_backbone,
)
from .batch import GraphBatch
from .components import GraphEnergy, GraphTangent, PooledCoefficient
from .conv import DynamicsConv
from .dirichlet import DirichletEnergy
from .encoders import ATOM_FEATURES, BOND_FEATURES, CategoricalEncoder, PositionalEncoder
from .models import GraphModel, GraphNet, Tango
from .tango import TangoConv

__all__ = [
    "ATOM_FEATURES",
    "BACKBONES",
    "BOND_FEATURES",
    "GPS",
    "NORMS",
    "Backbone",
    "CategoricalEncoder",
    "DirichletEnergy",
    "DynamicsConv",
    "GatedGCN",
    "GraphAttention",
    "GraphBatch",
    "GraphEnergy",
    "GraphModel",
    "GraphNet",
    "GraphTangent",
    "ModuleBackbone",
    "Norm",
    "PooledCoefficient",
    "PositionalEncoder",
    "PyGBackbone",
    "Tango",
    "TangoConv",
    "make_backbone",
]
