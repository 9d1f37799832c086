"""Newton's direction, split into a descent part and a tangent."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor

from solvers import Newton, Systems
from solvers.autograd import fresh, outside_inference_mode, recording
from solvers.root_finding import attach_root
from solvers.typing import PerSystem, PerSystemBool

from .base import Energy, FunctionEnergy, Tangent, call, has_another_leaf
from .linear import dense_solve, minres
from .projection import share_along

Solver = Literal["auto", "dense", "krylov"]

# Up to this many entries a system's Hessian is written out: its eigenvalues then tell all there is to know.
DENSE_LIMIT = 64


@dataclasses.dataclass(frozen=True)
class NewtonSplit:
    r"""Newton's direction :math:`N = (\nabla^2 V)^{-1} g`, written as :math:`N = \alpha g + T` with T orthogonal to g.

    Attributes:
        direction: N, like the state.
        gradient: g.
        alpha: :math:`\langle N, g \rangle / \langle g, g \rangle` of each system, `[S]`; negative where N climbs.
        tangent: T.
        residual: :math:`|\nabla^2 V\, N - g| / |g|` of each system, `[S]`, damping included; 0 where g = 0.
        orthogonality: :math:`|\langle T, g \rangle| / (|T| |g|)` of each system, `[S]`; 0 where T or g is.
        smallest: The smallest eigenvalue of each system's Hessian, `[S]`, as far as it was seen: see `exact`.
        largest: The largest one.
        singular: Where the Hessian cannot be inverted, `[S]`: N solves it in the least squares there, and the
            residual says how well. Damping makes it invertible.
        indefinite: Where the Hessian has a negative eigenvalue, `[S]`: N may lead to a saddle there.
        converged: Where the equation was solved to the tolerance, `[S]`.
        exact: Whether the Hessian was written out. If not, it is known along the directions that the gradient leads to,
            and no others.

    >>> import torch
    >>> from lyapflow import newton_split
    >>> split = newton_split(lambda h: h[:, 0] ** 2 - h[:, 1] ** 2, torch.ones(1, 2))
    >>> bool(split.ok), split.report()
    (False, 'system 0: the Hessian is indefinite (eigenvalues -2 to 2, residual 0.0e+00); damping=2.0e+00 would ...')
    """

    direction: Tensor
    gradient: Tensor
    alpha: PerSystem
    tangent: Tensor
    residual: PerSystem
    orthogonality: PerSystem
    smallest: PerSystem
    largest: PerSystem
    singular: PerSystemBool
    indefinite: PerSystemBool
    converged: PerSystemBool
    exact: bool

    @property
    def ok(self) -> PerSystemBool:
        """Where N is Newton's direction, and descends: `[S]`."""
        return self.converged & ~self.singular & ~self.indefinite

    def report(self) -> str:
        """What is wrong, a line for each system where something is; empty if all is well."""
        lines = []
        for s in (~self.ok).nonzero().flatten().tolist():
            low, high, left = float(self.smallest[s]), float(self.largest[s]), float(self.residual[s])
            what = [
                text for text, flag in (("singular", self.singular), ("indefinite", self.indefinite)) if bool(flag[s])
            ]
            kind = " and ".join(what) if what else "too ill-conditioned to solve"
            advice = f"damping={max(-low, 0.0) + 1e-3 * max(abs(low), abs(high), 1e-12):.1e} would make it definite"
            lines.append(
                f"system {s}: the Hessian is {kind} "
                f"(eigenvalues {low:.3g} to {high:.3g}, residual {left:.1e}); {advice}"
            )
        return "\n".join(lines)


@outside_inference_mode
def newton_split(
    energy: Energy | Callable[[Tensor], Tensor],
    h: Tensor,
    systems: Systems | None = None,
    *,
    t: float | Tensor = 0.0,
    damping: float = 0.0,
    solver: Solver = "auto",
    tolerance: float | None = None,
    max_iterations: int | None = None,
) -> NewtonSplit:
    r"""Newton's direction of an energy at a state, split into :math:`\alpha g + T`, each system on its own.

    Small systems have their Hessian written out, and its eigenvalues looked at. For large ones nothing is formed: the
    equation is solved by MINRES on Hessian-vector products, which copes with indefinite and singular Hessians too.
    The result is differentiable in the state and the energy's parameters, where gradients are being recorded.

    Args:
        energy: An :class:`Energy`, or any callable that maps the state to `[S]`.
        h: The state.
        systems: How it is divided, by default as the energy says.
        t: The time, for energies that take it.
        damping: Added to the diagonal of the Hessian, in its own units.
        solver: "dense", "krylov", or "auto": dense up to 64 entries in the largest system.
        tolerance: Of the residual, relative to the gradient; by default a power of the machine epsilon.
        max_iterations: Of MINRES; by default five times the largest system's size.

    >>> import torch
    >>> from lyapflow import Quadratic, newton_split
    >>> split = newton_split(Quadratic([1.0, 100.0]), torch.tensor([[1.0, 1.0]]))
    >>> split.direction  # one full step leads to the minimum
    tensor([[1., 1.]])
    >>> split.alpha, split.tangent
    (tensor([0.0101]), tensor([[ 0.9899, -0.0099]]))
    """
    module = energy if isinstance(energy, Energy) else FunctionEnergy(energy)
    module = module if systems is None else module.bind(systems)
    if solver not in ("auto", "dense", "krylov"):
        raise ValueError(f'solver must be "auto", "dense" or "krylov", got {solver!r}')
    if not damping >= 0:
        raise ValueError(f"damping must not be negative, got {damping}")
    kind = getattr(h, "dtype", type(h).__name__)
    if kind not in (torch.float32, torch.float64):
        raise TypeError(f"h must be a tensor of float32 or float64, got {kind}")
    bound = module.systems.bind(h)
    tolerance = torch.finfo(h.dtype).eps ** 0.75 if tolerance is None else tolerance
    size = int(bound.sizes.max()) if bound.count else 0
    dense = solver == "dense" or (solver == "auto" and size <= DENSE_LIMIT)

    tape = _Tape(module, h, t, damping)
    with torch.no_grad():
        gradient = tape.gradient.detach()
        if dense:
            direction, curvature = dense_solve(tape.hessian_times, gradient, bound)
        else:
            limit = 5 * size if max_iterations is None else max_iterations
            direction, curvature = minres(tape.hessian_times, gradient, bound, tolerance, limit)
        residual = _relative(bound, tape.hessian_times(direction) - gradient, gradient)
        # Rounding alone leaves a residual that grows with the condition of the Hessian.
        loss = torch.finfo(h.dtype).eps * 32 * curvature.condition
        converged = residual <= torch.maximum(loss, torch.full_like(residual, tolerance))
    if tape.differentiable:
        gradient = tape.gradient
        direction = attach_root(
            lambda x: tape.hessian_times(x, record=True) - tape.gradient, direction, bound, _adjoint_settings(size)
        )
    tangent = bound.orthogonal(direction, gradient)
    with torch.no_grad():
        overlap = bound.inner(tangent, gradient).abs()
        lengths = (bound.inner(tangent, tangent) * bound.inner(gradient, gradient)).sqrt()
        orthogonality = torch.where(lengths > 0, overlap / torch.where(lengths > 0, lengths, 1.0), 0.0)
    return NewtonSplit(
        direction=direction,
        gradient=gradient,
        alpha=share_along(direction, gradient, bound),
        tangent=tangent,
        residual=residual,
        orthogonality=orthogonality,
        smallest=curvature.smallest - damping,
        largest=curvature.largest - damping,
        singular=curvature.singular,
        indefinite=curvature.indefinite,
        converged=converged,
        exact=dense,
    )


def _adjoint_settings(size: int) -> Newton:
    """GMRES for the derivatives: all Krylov vectors of a small system, restarts for a large one."""
    krylov = max(1, min(size, DENSE_LIMIT))
    return Newton(krylov=krylov, restarts=3 + 5 * size // krylov)


class _Tape:
    """The gradient of an energy at a state, kept ready to be differentiated along directions."""

    def __init__(self, energy: Energy, h: Tensor, t: float | Tensor, damping: float) -> None:
        through_state = torch.is_grad_enabled() and h.requires_grad
        enabled = torch.is_grad_enabled()
        self.damping = damping
        time = t if isinstance(t, Tensor) else torch.tensor(t, dtype=h.dtype, device=h.device)
        with recording():
            self.point = h if through_state else fresh(h)
            value = call(energy, self.point, {"t": time})
            if value.shape != (count := energy.systems.bind(h).count,):
                raise ValueError(
                    f"the energy must be one value for each of the {count} systems, got {list(value.shape)}"
                )
            self.gradient = _derivative(value.sum(), self.point, None, True)
        self.differentiable = through_state or (enabled and has_another_leaf(value, self.point))

    def hessian_times(self, x: Tensor, record: bool = False) -> Tensor:
        """The damped Hessian times a vector."""
        with recording():
            image = _derivative(self.gradient, self.point, x, record)
        return torch.add(image, x, alpha=self.damping)


def _derivative(value: Tensor, point: Tensor, along: Tensor | None, create_graph: bool) -> Tensor:
    """The gradient of `<value, along>`, or zero where it does not depend on the point."""
    if not value.requires_grad:
        return torch.zeros_like(point)
    (found,) = torch.autograd.grad(
        value, point, along, create_graph=create_graph, retain_graph=True, materialize_grads=True
    )
    return found


def _relative(systems: Systems, x: Tensor, to: Tensor) -> Tensor:
    size, scale = systems.inner(x, x).sqrt(), systems.inner(to, to).sqrt()
    return torch.where(scale > 0, size / torch.where(scale > 0, scale, 1.0), size)


@final
class NewtonTangent(Tangent):
    r"""The direction :math:`M = -N`, so that a field with it moves as Newton's method does.

    With `alpha=DescentShare()` the field is Newton's flow :math:`dh/dt = -N` wherever that descends, whatever the
    condition of the Hessian: all of it has decayed after a time of a few units. With another alpha, only the part of N
    orthogonal to the gradient is used.

    Args:
        energy: The energy of the field.
        damping: Added to the diagonal of the Hessian, in its own units.
        solver: "dense", "krylov" or "auto", as in :func:`newton_split`.

    >>> import torch
    >>> from lyapflow import DescentShare, LyapunovField, NewtonTangent, Quadratic
    >>> bowl = Quadratic([1.0, 1e4])
    >>> field = LyapunovField(bowl, NewtonTangent(bowl), alpha=DescentShare())
    >>> field(0.0, torch.tensor([[1.0, 2.0]]))
    tensor([[-1., -2.]])
    """

    def __init__(self, energy: Energy, damping: float = 0.0, solver: Solver = "auto") -> None:
        super().__init__()
        if not isinstance(energy, Energy):
            raise TypeError(f"energy must be an Energy, got {type(energy).__name__}")
        self.energy = energy
        self.systems = energy.systems
        self.takes = ("t",) if "t" in energy.takes else ()
        self.damping = damping
        self.solver: Solver = solver

    def forward(self, h: Tensor, t: Any = 0.0) -> Tensor:
        return -newton_split(self.energy, h, t=t, damping=self.damping, solver=self.solver).direction

    def extra_repr(self) -> str:
        return f"damping={self.damping}, solver={self.solver!r}"


def newton_gap(field: Callable[[Any, Tensor], Tensor], h: Tensor, split: NewtonSplit, systems: Systems) -> PerSystem:
    r"""How far a field is from Newton's flow: :math:`|f(h) + N|^2 / |N|^2` of each system, `[S]`.

    A loss to train a tangent and its coefficients towards Newton's direction with.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, newton_gap, newton_split, Rows
    >>> bowl, h = Quadratic([2.0, 2.0]), torch.ones(1, 2)
    >>> newton_gap(LyapunovField(bowl, alpha=0.5), h, newton_split(bowl, h), Rows())  # N = g / 2 here
    tensor([0.])
    """
    goal = split.direction.detach()
    return _relative(systems.bind(h), field(0.0, h) + goal, goal).square()
