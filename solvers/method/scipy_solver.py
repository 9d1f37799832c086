"""SciPy's integrators as a method: what one of them does between two times is one step here."""

from __future__ import annotations

import warnings
from typing import Any, final

import torch
from torch import Tensor

from ..systems import Single
from ..term import Term
from .base import Method, Step


@final
class SciPySolver(Method):
    """Integrates each step with `scipy.integrate.solve_ivp`; for one system, without gradients through the steps.

    It is not in the registry: `odeint` knows it as "scipy_solver", `solve` takes the object. SciPy starts anew at every
    time that a step ends at. Gradients come from `odeint_adjoint` or `Backsolve`.

    Args:
        solver: The `method` of `solve_ivp`: "LSODA", "RK45", "RK23", "DOP853", "Radau" or "BDF".
        rtol: Relative tolerance.
        atol: Absolute tolerance, a number.
        min_step: The smallest step; only LSODA knows it.
        max_step: The largest step.
    """

    name = "scipy_solver"
    order = 1  # of an interpolant, which is never used: save times are stepped onto
    stages = 1

    def __init__(
        self,
        solver: str = "LSODA",
        rtol: float = 1e-7,
        atol: float = 1e-9,
        min_step: float = 0.0,
        max_step: float = float("inf"),
    ) -> None:
        self.solver, self.rtol, self.atol, self.min_step, self.max_step = solver, rtol, atol, min_step, max_step

    @property
    def lands(self) -> bool:
        return True

    def step(self, term: Term, t0: Tensor, t1: Tensor, y0: Tensor, f0: Tensor | None, land: Tensor | None) -> Step:
        try:
            from scipy.integrate import solve_ivp
        except ImportError as error:
            raise ImportError("method 'scipy_solver' needs SciPy: pip install 'lyapflow[scipy]'") from error
        if not isinstance(term.systems, Single):
            raise ValueError("method 'scipy_solver' integrates one system: leave out `systems`")
        if torch.is_grad_enabled() and term(t0, y0).requires_grad:
            message = "method 'scipy_solver' records no gradients: use odeint_adjoint, or torch.no_grad()"
            warnings.warn(message, stacklevel=2)
        h = term.systems.spread((t1 - t0).to(term.real_dtype))
        before = term.calls
        if bool(t1 == t0):
            return Step(t0, t1, h, y0, y0, 0)
        like = y0.detach()

        def field(t: float, flat: Any) -> Any:
            state = torch.as_tensor(flat).to(like).reshape(like.shape)
            with torch.no_grad():
                return term(t0.new_tensor([t]), state).reshape(-1).cpu().numpy()

        smallest = {"min_step": self.min_step} if self.min_step > 0 else {}
        result = solve_ivp(
            field, (float(t0), float(t1)), like.reshape(-1).cpu().numpy(), method=self.solver, t_eval=[float(t1)],
            rtol=self.rtol, atol=self.atol, max_step=self.max_step, **smallest,
        )  # fmt: skip
        failed = torch.tensor([not result.success], device=y0.device)
        y1 = like if not result.success else torch.as_tensor(result.y[:, -1]).to(like).reshape(like.shape)
        return Step(t0, t1, h, y0, y1, term.calls - before, failed=failed)
