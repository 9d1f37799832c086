"""Property tests for fields, ours and yours. Needs hypothesis: `pip install "lyapflow[testing]"`.

`check_field` tries everything that a Lyapunov field promises; the strategies draw states, systems, energies, fields and
graphs for tests of your own. It all works with plain pytest, or without it.
"""

import importlib.util

if importlib.util.find_spec("hypothesis") is None:
    raise ImportError('lyapflow.testing needs hypothesis: pip install "lyapflow[testing]"')

from .contract import PROMISES, BrokenPromise, check_field
from .single import assert_dissipates, assert_newton, assert_tangent
from .strategies import Graphs, divided_states, energies, fields, graphs, states, states_like, systems, tangents

__all__ = [
    "PROMISES",
    "BrokenPromise",
    "Graphs",
    "assert_dissipates",
    "assert_newton",
    "assert_tangent",
    "check_field",
    "divided_states",
    "energies",
    "fields",
    "graphs",
    "states",
    "states_like",
    "systems",
    "tangents",
]
