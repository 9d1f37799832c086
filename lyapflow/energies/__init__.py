"""Ready energies: analytic ones to test and to teach with, and learned ones."""

from .analytic import DoubleWell, Himmelblau, LogSumExp, Quadratic, Rosenbrock
from .learned import ConvexEnergy, MLPEnergy
from .timed import Annealed

__all__ = ["Annealed", "ConvexEnergy", "DoubleWell", "Himmelblau", "LogSumExp", "MLPEnergy", "Quadratic", "Rosenbrock"]
