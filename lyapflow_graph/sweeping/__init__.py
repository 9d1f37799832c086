"""Searches for the best configuration by the validation set. Needs `pip install "lyapflow[graph,train]"`."""

try:
    import optuna  # noqa: F401
except ImportError as error:
    raise ImportError('sweeps need Optuna: pip install "lyapflow[graph,train]"') from error

from .findings import Findings, Trial
from .plan import Search, Sweep, load_sweep
from .run import run_sweep
from .space import Choices, Range

__all__ = ["Choices", "Findings", "Range", "Search", "Sweep", "Trial", "load_sweep", "run_sweep"]
