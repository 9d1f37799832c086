"""The Lyapunov field: down the energy's gradient, and along what is orthogonal to it."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from solvers import Rows, Systems
from solvers.typing import PerSystem

from .algebra import Field
from .base import (
    Coefficient,
    Energy,
    FunctionCoefficient,
    FunctionEnergy,
    FunctionTangent,
    Slope,
    Tangent,
    call,
    checked_systems,
    taken_by,
)
from .projection import at_least_single

Projection = Literal["system", "row", "none"]
Descent = Literal["gradient", "features"]
Scale = float | Tensor


@dataclasses.dataclass(frozen=True)
class Parts:
    """Every term of a Lyapunov field at one state.

    Attributes:
        energy: V of each system, `[S]`.
        gradient: g, the gradient of V in the state.
        descent: What the field goes against: g, unless the field was told otherwise.
        direction: M, as the tangent module gives it.
        tangent: T, the direction made orthogonal to `descent`.
        alpha: Of each system, `[S]`.
        beta: Of each system, `[S]`.
        velocity: `-alpha descent + beta T`, what the field returns.
        dissipation: `alpha |g|^2` of each system, `[S]`: what is promised.
        rate: dV/dt of each system, `[S]`, as it is: `<g, velocity>`, and the partial derivative in time of an energy
            that depends on it. The promise is `rate = -dissipation`.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic
    >>> parts = LyapunovField(Quadratic([1.0, 1.0]), torch.ones_like, alpha=2.0).parts(0.0, torch.tensor([[3.0, 4.0]]))
    >>> parts.energy, parts.gradient, parts.rate
    (tensor([12.5000]), tensor([[3., 4.]]), tensor([-50.]))
    """

    energy: PerSystem
    gradient: Tensor
    descent: Tensor
    direction: Tensor
    tangent: Tensor
    alpha: PerSystem
    beta: PerSystem
    velocity: Tensor
    dissipation: PerSystem
    rate: PerSystem


@final
class LyapunovField(Field):
    r"""A field along which a learned energy never grows.

    .. math::
        \frac{dh}{dt} = -\alpha\, g + \beta\, T, \qquad g = \nabla V(h), \qquad
        T = M(h) - \frac{\langle M(h), g \rangle}{\langle g, g \rangle} g,

    each system with its own inner product, so that :math:`dV/dt = -\alpha |g|^2 \le 0`. This is a statement about the
    differential equation: forward Euler steps keep it only if they are small, dissipative methods (see
    :func:`solvers.methods`) at any size. Where g = 0 the field is :math:`\beta M`, so that a flat region is not a
    place of rest.

    The field can be called under `torch.no_grad()` and `torch.inference_mode()`; it is differentiable, twice and
    more, where gradients are being recorded.

    Args:
        energy: V: an :class:`Energy`, or any callable that maps the state to `[S]`.
        tangent: M: a :class:`Tangent`, or any callable that maps the state to something like it. None stands for the
            gradient flow.
        alpha: A number, a tensor, or a module that maps the state to `[S]`. A negative number is refused; what a
            module or a tensor gives is cut off at 0, so let it end in a sigmoid or softplus, which have a gradient.
        beta: Likewise, of any sign. 0 is the gradient flow: the tangent is not even evaluated.
        systems: How the state is divided, by default as the energy says; else energy, tangent and coefficients are
            taken over to these systems.
        projection: "system" for an inner product per system; "row" for one per row of the state (a node of a graph),
            which implies the former; "none" leaves the direction as it is, and with it nothing is promised.
        descent: What the field goes against and is orthogonal to: the "gradient" of the energy, or its "features"
            (by default the state), or a module that maps the state to something like it. Only the first is promised
            to lower the energy.

    >>> import torch
    >>> from lyapflow import LyapunovField, MLPEnergy, MLPTangent
    >>> field = LyapunovField(MLPEnergy(2), MLPTangent(2), alpha=0.5, beta=2.0)
    >>> parts = field.parts(0.0, torch.randn(8, 2))
    >>> torch.allclose(parts.rate, -parts.dissipation, atol=1e-5)
    True
    """

    systems: Systems
    alpha: Any  # a number, a tensor or a Coefficient
    beta: Any

    def __init__(
        self,
        energy: Energy | Callable[[Tensor], Tensor],
        tangent: Tangent | Callable[[Tensor], Tensor] | None = None,
        alpha: float | Tensor | Callable[[Tensor], Tensor] = 1.0,
        beta: float | Tensor | Callable[[Tensor], Tensor] = 1.0,
        systems: Systems | None = None,
        projection: Projection = "system",
        descent: Descent | Callable[[Tensor], Tensor] = "gradient",
    ) -> None:
        super().__init__()
        systems = None if systems is None else checked_systems(systems)
        if projection not in ("system", "row", "none"):
            raise ValueError(f'projection must be "system", "row" or "none", got {projection!r}')
        if isinstance(descent, str) and descent not in ("gradient", "features"):
            raise ValueError(f'descent must be "gradient", "features" or a module, got {descent!r}')
        self.energy_module: Energy = _component("energy", energy, Energy, FunctionEnergy, systems)
        self.systems = self.energy_module.systems
        self.tangent_module: Tangent | None = None
        if tangent is not None:
            self.tangent_module = _component("tangent", tangent, Tangent, FunctionTangent, self.systems)
        self._set_coefficient("alpha", alpha)
        if not callable(alpha) and bool((torch.as_tensor(alpha).detach() < 0).any()):
            raise ValueError(f"alpha must not be negative, or the energy grows; got {alpha}")
        self._set_coefficient("beta", beta)
        self.projection: Projection = projection
        self.descent: Any = (
            descent if isinstance(descent, str) else _component("descent", descent, Tangent, FunctionTangent, systems)
        )
        parts = (self.energy_module, self.tangent_module, self.alpha, self.beta, self.descent)
        self._timed = any("t" in getattr(part, "takes", ()) for part in parts)

    def energy(self, t: float | Tensor, h: Tensor) -> PerSystem:
        """V of each system, `[S]`."""
        with _without_autocast(h):
            state = at_least_single(h)
            return call(self.energy_module, state, {"t": _as_time(t, state)})

    def forward(self, t: float | Tensor, h: Tensor) -> Tensor:
        """dh/dt."""
        return self._evaluate(t, h).velocity

    @property
    def energy_is_timed(self) -> bool:
        """Whether the energy depends on time explicitly."""
        return "t" in self.energy_module.takes

    def velocity_and_energy(self, t: float | Tensor, h: Tensor) -> tuple[Tensor, PerSystem]:
        """dh/dt and V of each system, `[S]`, from one evaluation."""
        e = self._evaluate(t, h)
        return e.velocity, self.energy(t, h) if e.slope is None else e.slope.energy

    def parts(self, t: float | Tensor, h: Tensor) -> Parts:
        """Every term of the field at one state."""
        e = self._evaluate(t, h)
        systems, state = e.systems, at_least_single(h)
        slope = e.slope
        explicit: Scale = 0.0
        if slope is None or "t" in self.energy_module.takes:
            time = _as_time(t, state)
            slope = Slope(self.energy_module, state, {"t": time})
            explicit = _partial_in_time(self.energy_module, state, time, systems)
        g = slope.gradient
        alpha, beta = (_per_system(value, systems, state) for value in (e.alpha, e.beta))
        nothing = torch.zeros_like(g)
        return Parts(
            energy=slope.energy,
            gradient=g,
            descent=e.descent,
            direction=nothing if e.direction is None else e.direction,
            tangent=nothing if e.direction is None else self._tangent(e.direction, e.descent, systems),
            alpha=alpha,
            beta=beta,
            velocity=e.velocity,
            dissipation=alpha * systems.inner(g, g),
            rate=systems.inner(g, e.velocity.to(g.dtype)) + explicit,
        )

    def _evaluate(self, t: float | Tensor, h: Tensor) -> _Evaluation:
        state = at_least_single(h)
        systems = self.systems.bind(state)
        # Modules are looked up once: for an attribute of a module that is no cheap thing.
        energy_module, tangent_module = self.energy_module, self.tangent_module
        known: dict[str, Any] = {"t": _as_time(t, state) if self._timed else t}
        slope = None
        if self.descent == "gradient":
            with _without_autocast(h):
                slope = Slope(energy_module, state, known)
            _check_energy(slope.energy, systems)
            descent = slope.gradient
            known |= {"features": slope.features, "energy": slope.energy, "gradient": descent}
        else:
            energy, features = None, None
            if self.descent == "features":
                energy, features = energy_module.value_and_features(state, **taken_by(energy_module, known))
                descent = features
            else:
                descent = call(self.descent, state, known)
            _check_like("descent", descent, state)
            known |= {"features": features, "energy": energy, "gradient": descent}

        direction = None
        of_tangent: dict[str, Any] = known
        flows = not (isinstance(self.beta, float) and self.beta == 0.0)
        if tangent_module is not None and flows:
            direction, features = tangent_module.direction_and_features(h, **taken_by(tangent_module, known))
            _check_like("tangent", direction, h)
            direction = at_least_single(direction)
            known = known | {"direction": direction}
            of_tangent = known | {"features": features}

        alpha = self._value(self.alpha, state, known, systems)
        if isinstance(alpha, Tensor):
            alpha = alpha.clamp(min=0)
        beta = 0.0 if direction is None else self._value(self.beta, state, of_tangent, systems)
        velocity = self._velocity(descent, direction, alpha, beta, systems)
        return _Evaluation(systems, slope, descent, direction, alpha, beta, velocity.to(h.dtype))

    def _velocity(
        self, descent: Tensor, direction: Tensor | None, alpha: Scale, beta: Scale, systems: Systems
    ) -> Tensor:
        if direction is None:
            return descent * (-systems.spread(alpha) if isinstance(alpha, Tensor) else -alpha)
        if self.projection == "system":
            return systems.combine(direction, descent, alpha, beta)
        return systems.weigh(descent, self._tangent(direction, descent, systems), alpha, beta)

    def _tangent(self, direction: Tensor, descent: Tensor, systems: Systems) -> Tensor:
        if self.projection == "none":
            return direction
        return (systems if self.projection == "system" else Rows().bind(descent)).orthogonal(direction, descent)

    def _set_coefficient(self, name: str, given: Any) -> None:
        if isinstance(given, (int, float)) and not isinstance(given, bool):
            if not math.isfinite(given):
                raise ValueError(f"{name} must be finite, got {given}")
            setattr(self, name, float(given))
        elif isinstance(given, Tensor):
            if given.ndim > 1 or not given.is_floating_point():
                kind = f"{given.dtype} of shape {list(given.shape)}"
                raise ValueError(f"{name} must be a real scalar or [S], got {kind}")
            if isinstance(given, nn.Parameter):
                setattr(self, name, given)
            else:
                self.register_buffer(name, given)
        elif callable(given):
            setattr(self, name, _component(name, given, Coefficient, FunctionCoefficient, self.systems))
        else:
            kind = type(given).__name__
            raise TypeError(f"{name} must be a number, a tensor, or a module that gives [S], got {kind}")

    @staticmethod
    def _value(source: float | Tensor | Coefficient, h: Tensor, known: dict[str, Any], systems: Systems) -> Scale:
        if isinstance(source, float):
            return source
        value: Any
        if isinstance(source, Tensor):
            value = source if source.ndim else source.expand(systems.count)
        else:
            value = call(source, h, known)
        if not isinstance(value, Tensor) or value.shape != (systems.count,):
            got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"a coefficient must have one value for each of the {systems.count} systems, got {got}")
        return value.to(h.dtype)

    def extra_repr(self) -> str:
        told = [f"{name}={value}" for name in ("alpha", "beta") if isinstance(value := getattr(self, name), float)]
        told += [f"systems={type(self.systems).__name__}()"]
        if self.projection != "system":
            told.append(f"projection={self.projection!r}")
        if isinstance(self.descent, str) and self.descent != "gradient":
            told.append(f"descent={self.descent!r}")
        return ", ".join(told)


@dataclasses.dataclass(slots=True)
class _Evaluation:
    systems: Systems
    slope: Slope | None
    descent: Tensor
    direction: Tensor | None
    alpha: Scale
    beta: Scale
    velocity: Tensor


def _component(name: str, given: Any, kind: Any, wrap: Any, systems: Systems | None) -> Any:
    """A component of the kind asked for, over the systems."""
    if not isinstance(given, kind):
        if not callable(given):
            raise TypeError(f"{name} must be {kind.__name__} or a callable of the state, got {type(given).__name__}")
        given = wrap(given)
    return given if systems is None or given.systems is systems else given.bind(systems)


def _per_system(value: Scale, systems: Systems, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else like.new_full((systems.count,), value)


def _check_energy(value: Any, systems: Systems) -> None:
    if value.shape != (systems.count,):
        raise ValueError(
            f"the energy must be one value for each of the {systems.count} systems, got shape {list(value.shape)}; "
            "does it know the systems? See LyapunovField(..., systems=...)"
        )


def _check_like(name: str, value: Any, h: Tensor) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(
            f"the {name} must be a tensor of shape {list(h.shape)}, like the state; got {type(value).__name__}"
        )
    if value.shape != h.shape:
        raise ValueError(f"the {name} must have the state's shape {list(h.shape)}, got {list(value.shape)}")


def _as_time(t: float | Tensor, h: Tensor) -> Tensor:
    return t if isinstance(t, Tensor) else torch.tensor(t, dtype=h.dtype, device=h.device)


def _partial_in_time(energy: Energy, h: Tensor, t: Tensor, systems: Systems) -> Scale:
    """The partial derivative in time of each system's energy, `[S]`."""
    if "t" not in energy.takes:
        return 0.0
    record = torch.is_grad_enabled()
    with torch.enable_grad():
        seconds = torch.zeros(systems.count, dtype=h.dtype, device=h.device, requires_grad=True)
        value = call(energy, h, {"t": t + systems.spread(seconds)})
        (slope,) = torch.autograd.grad(value.sum(), seconds, create_graph=record, materialize_grads=True)
    return slope


_AS_IT_IS = contextlib.nullcontext()


def _without_autocast(h: Tensor) -> Any:
    """The energy is computed in the precision of its parameters, also where the rest of a model is not."""
    kind = h.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else _AS_IT_IS
