"""`solvers` in torchdiffeq's place, for code of others that imports torchdiffeq by its name.

Code of your own changes its import: `from solvers.compat import odeint, odeint_adjoint, odeint_event, odeint_dense`.
A library that says `import torchdiffeq` gets `solvers` after

>>> import solvers.compat
>>> solvers.compat.install()  # before the library is imported
>>> import torchdiffeq
>>> torchdiffeq.odeint is solvers.odeint
True
>>> solvers.compat.uninstall()

What differs is listed in the documentation, under "Coming from torchdiffeq".
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .controllers import PID
from .drop_in import odeint, odeint_adjoint, odeint_event
from .integrate import solve
from .method import Method, SciPySolver, methods
from .solution import Solution

__all__ = ["SOLVERS", "install", "odeint", "odeint_adjoint", "odeint_dense", "odeint_event", "uninstall"]

SOLVERS: dict[str, Method] = {**methods(), "scipy_solver": SciPySolver()}
"""The methods that `odeint` knows by name."""


def odeint_dense(
    func: Any,
    y0: Tensor,
    t0: float | Tensor,
    t1: float | Tensor,
    *,
    rtol: float = 1e-7,
    atol: float = 1e-9,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Solution[Tensor]:
    """Integrate from `t0` to `t1` and return the solution as a function of time."""
    controller = PID(rtol=rtol, atol=atol, **(options or {}))
    return solve(func, y0, t0, t1, method=method or "dopri5", controller=controller, dense=True)


_MODULES = {
    "torchdiffeq": ("odeint", "odeint_adjoint", "odeint_event", "odeint_dense"),
    "torchdiffeq._impl": ("odeint", "odeint_adjoint", "odeint_event", "odeint_dense"),
    "torchdiffeq._impl.odeint": ("odeint", "odeint_event", "odeint_dense", "SOLVERS"),
    "torchdiffeq._impl.adjoint": ("odeint_adjoint",),
}
_replaced: dict[str, types.ModuleType] = {}


def install() -> None:
    """Make `import torchdiffeq` give `solvers`, in this process, from now on."""
    if getattr(sys.modules.get("torchdiffeq"), "__solvers__", False):
        return
    for name in [name for name in sys.modules if name.split(".")[0] == "torchdiffeq"]:
        _replaced[name] = sys.modules.pop(name)
    for name, members in _MODULES.items():
        module = types.ModuleType(name, "torchdiffeq's interface, from `solvers`.")
        module.__dict__.update({member: globals()[member] for member in members}, __solvers__=True, __path__=[])
        sys.modules[name] = module
    sys.modules["torchdiffeq"].__dict__["_impl"] = sys.modules["torchdiffeq._impl"]


def uninstall() -> None:
    """Undo :func:`install`; modules that were imported in the meantime keep what they have."""
    if getattr(sys.modules.get("torchdiffeq"), "__solvers__", False):
        for name in _MODULES:
            del sys.modules[name]
        sys.modules.update(_replaced)
        _replaced.clear()
