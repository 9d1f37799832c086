"""The methods: each is one step of time."""

from . import tableaus  # noqa: F401  (importing registers, and the registry keeps this order)
from .adams import Adams
from .base import LockstepMethod, Method, Step, methods, register
from .dissipative import ArmijoEuler, DiscreteGradient, DissipativeMethod, Proposal, RelaxedRK, Start
from .explicit import ExplicitRK, Tableau
from .implicit import ImplicitRK, ImplicitTableau
from .scipy_solver import SciPySolver
from .symplectic import Symplectic

__all__ = [
    "Adams",
    "ArmijoEuler",
    "DiscreteGradient",
    "DissipativeMethod",
    "ExplicitRK",
    "ImplicitRK",
    "ImplicitTableau",
    "LockstepMethod",
    "Method",
    "Proposal",
    "RelaxedRK",
    "SciPySolver",
    "Start",
    "Step",
    "Symplectic",
    "Tableau",
    "methods",
    "register",
]
