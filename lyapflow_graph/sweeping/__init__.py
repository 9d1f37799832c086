"""Searches for the best configuration by the validation set. Needs `pip install "lyapflow[graph,train]"`."""

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError('sweeps need Optuna: pip install "lyapflow[graph,train]"') from error

from .plan import Search, Sweep, load_sweep
from .result import SweepResult, Trial
from .run import run_sweep
from .space import Choices, Range

__all__ = ["Choices", "Range", "Search", "Sweep", "SweepResult", "Trial", "load_sweep", "run_sweep"]
