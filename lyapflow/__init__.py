"""Learned energies, tangential flows and the Lyapunov fields they form, with certificates that the energy decays."""

from solvers import Rows, Segments, Single, Systems

from .algebra import Combination, Field, Window
from .base import Coefficient, Energy, PointwiseEnergy, SystemModule, Tangent
from .certificate import Certificate, Sampled
from .certify import certify
from .coefficients import DescentShare, MLPCoefficient
from .descent import DescentCount, descent_loss
from .energies import Annealed, ConvexEnergy, DoubleWell, Himmelblau, LogSumExp, MLPEnergy, Quadratic, Rosenbrock
from .field import LyapunovField, Parts
from .flow import Flow, odeint
from .newton import NewtonSplit, NewtonTangent, newton_gap, newton_split
from .projection import project
from .tangents import AntisymmetricTangent, MLPTangent

__version__ = "0.1.0.dev0"

__all__ = [
    "Annealed",
    "AntisymmetricTangent",
    "Certificate",
    "Coefficient",
    "Combination",
    "ConvexEnergy",
    "DescentCount",
    "DescentShare",
    "DoubleWell",
    "Energy",
    "Field",
    "Flow",
    "Himmelblau",
    "LogSumExp",
    "LyapunovField",
    "MLPCoefficient",
    "MLPEnergy",
    "MLPTangent",
    "NewtonSplit",
    "NewtonTangent",
    "Parts",
    "PointwiseEnergy",
    "Quadratic",
    "Rosenbrock",
    "Rows",
    "Sampled",
    "Segments",
    "Single",
    "SystemModule",
    "Systems",
    "Tangent",
    "Window",
    "__version__",
    "certify",
    "descent_loss",
    "newton_gap",
    "newton_split",
    "odeint",
    "project",
]
