"""The methods: each is one step of time."""

from . import tableaus  # noqa: F401  (importing registers, and the registry keeps this order)
from .base import LockstepMethod, Method, Step, methods, register
from .dissipative import ArmijoEuler, DiscreteGradient, DissipativeMethod, RelaxedRK
from .explicit import ExplicitRK, Tableau
from .implicit import ImplicitRK, ImplicitTableau
from .symplectic import Symplectic

__all__ = [
    "ArmijoEuler",
    "DiscreteGradient",
    "DissipativeMethod",
    "ExplicitRK",
    "ImplicitRK",
    "ImplicitTableau",
    "LockstepMethod",
    "Method",
    "RelaxedRK",
    "Step",
    "Symplectic",
    "Tableau",
    "methods",
    "register",
]
