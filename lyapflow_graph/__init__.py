"""Lyapunov fields on graphs: backbones, graph energies and tangents, TANGO, diagnostics, data and training."""

from .backbones import (
    BACKBONES,
    GPS,
    NORMS,
    Backbone,
    BackboneEntry,
    GatedGCN,
    GraphAttention,
    ModuleBackbone,
    Norm,
    PyGBackbone,
    make_backbone,
    register_backbone,
    register_conv,
)
from .batch import GraphBatch
from .conv import DynamicsConv
from .diagnostics import (
    InfluenceOverDistance,
    dirichlet_energy,
    effective_resistance,
    energy_per_step,
    influence,
    influence_over_distance,
    mean_average_distance,
    spectral_gap,
)
from .dirichlet import DirichletEnergy
from .dynamics import ADGN, DGC, GRAFF, GRAND, PHDGN, SWAN, GraphCON, GraphDynamics, GraphField
from .encoders import ATOM_FEATURES, BOND_FEATURES, CategoricalEncoder, PositionalEncoder
from .models import GraphModel, GraphNet, Tango
from .tango import TangoConv
from .tango_parts import GraphEnergy, GraphTangent, PooledCoefficient

__all__ = [
    "ADGN",
    "ATOM_FEATURES",
    "BACKBONES",
    "BOND_FEATURES",
    "DGC",
    "GPS",
    "GRAFF",
    "GRAND",
    "NORMS",
    "PHDGN",
    "SWAN",
    "Backbone",
    "BackboneEntry",
    "CategoricalEncoder",
    "DirichletEnergy",
    "DynamicsConv",
    "GatedGCN",
    "GraphAttention",
    "GraphBatch",
    "GraphCON",
    "GraphDynamics",
    "GraphEnergy",
    "GraphField",
    "GraphModel",
    "GraphNet",
    "GraphTangent",
    "InfluenceOverDistance",
    "ModuleBackbone",
    "Norm",
    "PooledCoefficient",
    "PositionalEncoder",
    "PyGBackbone",
    "Tango",
    "TangoConv",
    "dirichlet_energy",
    "effective_resistance",
    "energy_per_step",
    "influence",
    "influence_over_distance",
    "make_backbone",
    "mean_average_distance",
    "register_backbone",
    "register_conv",
    "spectral_gap",
]
