"""Solvers for ordinary differential equations in PyTorch: many independent systems, each with its own step size."""

from .adjoint import Adjoint, Backsolve, Checkpointed, Direct
from .controllers import PID, Controller, Decision, Fixed
from .drop_in import odeint, odeint_adjoint, odeint_event
from .guarded import rises, take_steps
from .integrate import solve
from .loop import LoopState
from .method import (
    Adams,
    ArmijoEuler,
    DiscreteGradient,
    DissipativeMethod,
    ExplicitRK,
    ImplicitRK,
    ImplicitTableau,
    LockstepMethod,
    Method,
    Proposal,
    RelaxedRK,
    SciPySolver,
    Start,
    Step,
    Symplectic,
    Tableau,
    methods,
    register,
)
from .root_finding import Newton
from .solution import Solution
from .status import SolveError, Status
from .stepper import Stepper
from .stopping import EnergyPlateau, SteadyState, Stop
from .systems import Rows, Segments, Single, Systems
from .term import HasEnergy, Term

__all__ = [
    "PID",
    "Adams",
    "Adjoint",
    "ArmijoEuler",
    "Backsolve",
    "Checkpointed",
    "Controller",
    "Decision",
    "Direct",
    "DiscreteGradient",
    "DissipativeMethod",
    "EnergyPlateau",
    "ExplicitRK",
    "Fixed",
    "HasEnergy",
    "ImplicitRK",
    "ImplicitTableau",
    "LockstepMethod",
    "LoopState",
    "Method",
    "Newton",
    "Proposal",
    "RelaxedRK",
    "Rows",
    "SciPySolver",
    "Segments",
    "Single",
    "Solution",
    "SolveError",
    "Start",
    "Status",
    "SteadyState",
    "Step",
    "Stepper",
    "Stop",
    "Symplectic",
    "Systems",
    "Tableau",
    "Term",
    "methods",
    "odeint",
    "odeint_adjoint",
    "odeint_event",
    "register",
    "rises",
    "solve",
    "take_steps",
]
