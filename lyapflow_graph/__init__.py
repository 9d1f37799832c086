"""Lyapunov fields on graphs: backbones, graph energies and tangents, TANGO, diagnostics, data and training."""

from .batch import GraphBatch
from .conv import DynamicsConv
from .dirichlet import DirichletEnergy

__all__ = ["DirichletEnergy", "DynamicsConv", "GraphBatch"]
