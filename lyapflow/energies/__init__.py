"""Ready energies: analytic ones to test and to teach with, and learned ones."""

from .analytic import DoubleWell, Himmelblau, LogSumExp, Quadratic, Rosenbrock
from .learned import ConvexEnergy, MLPEnergy
from .registry import ENERGIES, EnergyEntry, register_energy
from .timed import Annealed

__all__ = [
    "ENERGIES",
    "Annealed",
    "ConvexEnergy",
    "DoubleWell",
    "EnergyEntry",
    "Himmelblau",
    "LogSumExp",
    "MLPEnergy",
    "Quadratic",
    "Rosenbrock",
    "register_energy",
]
