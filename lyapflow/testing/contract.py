"""The contract of a field, with an energy or without, as checks that try to break it."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from torch import Tensor, nn

from solvers import Rows
from solvers.term import systems_of

from ..flow import Backend, odeint
from ..inspection import ROUNDINGS, length
from .single import assert_dissipates, assert_tangent
from .strategies import states_like

Check = Callable[[Any, Tensor, "_Others"], None]

# Single calls in other batches go through other matrix kernels, whose sums are rounded in another order.
_OTHER_KERNELS = 1024


class BrokenPromise(AssertionError):  # noqa: N818
    """A field does not do what it promises.

    Attributes:
        promise: Which one: a name from `PROMISES`.
        state: The state at which it is broken.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic
    >>> from lyapflow.testing import BrokenPromise, check_field
    >>> try:
    ...     check_field(LyapunovField(Quadratic([1.0]), lambda h: 9 * h, projection="none"), torch.ones(1, 1))
    ... except BrokenPromise as broken:
    ...     print(broken.promise, broken.state)
    dissipation tensor([[1.]])
    """

    def __init__(self, promise: str, why: str, state: Tensor) -> None:
        self.promise, self.state = promise, state
        super().__init__(f"{promise}: {why}\nat h = {state}")


class _Others:
    """Further states like the one at hand, for checks that need several."""

    def __init__(self, data: st.DataObject, strategy: st.SearchStrategy[Tensor]) -> None:
        self._data, self._strategy = data, strategy

    def draw(self) -> Tensor:
        return self._data.draw(self._strategy, label="another state")


def check_field(
    field: Any,
    states: Tensor | st.SearchStrategy[Tensor],
    *,
    promises: Iterable[str] | None = None,
    max_examples: int = 25,
) -> None:
    """Try to break everything that a field promises, and raise at the first broken promise.

    Of a field without an energy, nothing is asked about energies: "dissipation" and "orthogonality" are left out, and
    so is the energy's share of the others. The promises, in this order:

    - "shapes and types": `field(t, h)` is like h, `energy(t, h)` is `[S]` of its type, and h is left as it is;
    - "function of the state": two calls agree, in training and evaluation mode;
    - "no_grad": values do not depend on whether gradients are recorded, and nothing is recorded where they are not;
      under `torch.inference_mode` it works too;
    - "precision": float32 agrees with float64 (of modules), in the energy, or in the velocity where there is none;
    - "dissipation": dV/dt is not positive in any system, and is what the field says it is;
    - "orthogonality": the tangent of a field with `parts` is orthogonal to the gradient in every system;
    - "independence": no system's velocity or energy depends on another system;
    - "odeint": it can be integrated, with `solvers` and with torchdiffeq where that is installed, to the same result;
    - "gradients": derivatives in the state agree with finite differences, also in evaluation mode;
    - "odeint_adjoint": gradients by the adjoint equation agree with those through the steps;
    - "double backward": second derivatives agree with finite differences.

    Args:
        field: Called as `field(t, h)`, with `systems` unless the state is one system, and with `energy(t, h) -> [S]`
            if it is a Lyapunov field.
        states: A strategy for states, or an example: then states like it are drawn, at many scales.
        promises: Which ones to check, by default all that the field can make.
        max_examples: How many states are tried for each promise.

    Raises:
        BrokenPromise: With the promise, what is wrong, and the simplest state that was found to break it.

    >>> import torch
    >>> from lyapflow import LyapunovField, MLPEnergy, MLPTangent
    >>> from lyapflow.testing import check_field
    >>> check_field(LyapunovField(MLPEnergy(2), MLPTangent(2)), torch.randn(3, 2), max_examples=5)
    >>> unprojected = LyapunovField(MLPEnergy(2), MLPTangent(2), projection="none")
    >>> check_field(unprojected, torch.randn(3, 2))
    Traceback (most recent call last):
    lyapflow.testing.contract.BrokenPromise: dissipation: ...
    >>> check_field(lambda t, h: h.sin(), torch.randn(3, 2), max_examples=5)
    """
    if not callable(field):
        raise TypeError(f"field must be callable as field(t, h), got {type(field).__name__}")
    chosen = _chosen(field, promises)
    if isinstance(states, Tensor):
        if not states.is_floating_point():
            raise TypeError(f"states must be of a floating point type, got {states.dtype}")
        strategy: st.SearchStrategy[Tensor] = states_like(states)
    elif isinstance(states, st.SearchStrategy):
        strategy = states
    else:
        raise TypeError(f"states must be a tensor or a strategy of tensors, got {type(states).__name__}")
    for name in chosen:
        _try(field, name, strategy, max_examples)


def _chosen(field: Any, promises: Iterable[str] | None) -> list[str]:
    """The promises to check: those asked for, or all that the field can make."""
    beyond = () if _has_energy(field) else _OF_ENERGIES
    if promises is None:
        return [name for name in _CHECKS if name not in beyond]
    chosen = list(promises)
    for name in chosen:
        if name not in _CHECKS:
            raise ValueError(f"unknown promise {name!r}; known are: {', '.join(_CHECKS)}")
        if name in beyond:
            raise TypeError(f"{name!r} needs a field with energy(t, h) -> [S]; {type(field).__name__} has none")
    return chosen


def _try(field: Any, promise: str, strategy: st.SearchStrategy[Tensor], max_examples: int) -> None:
    check = _CHECKS[promise]

    @settings(
        max_examples=max_examples,
        deadline=None,
        database=None,
        derandomize=True,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.target, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(h=strategy, data=st.data())
    def attempt(h: Tensor, data: st.DataObject) -> None:
        h = h.detach()
        assume(_finite(field, h))
        try:
            check(field, h, _Others(data, strategy))
        except AssertionError as error:
            raise BrokenPromise(promise, str(error), h) from None
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BrokenPromise(promise, f"{type(error).__name__}: {error}", h) from error

    try:
        attempt()
    except Unsatisfiable:
        why = "no state was found at which it can be checked: is the field finite, and smooth somewhere? See states="
        raise ValueError(f"{promise}: {why}") from None


def _finite(field: Any, h: Tensor) -> bool:
    """Whether the field is finite at a state: far out it may overflow, and then there is nothing to check.

    Where it raises, the check will say so.
    """
    try:
        with torch.no_grad():
            return all(bool(torch.isfinite(value).all()) for value in _values(field, h).values())
    except Exception:
        return True


def _zero(h: Tensor) -> Tensor:
    return torch.zeros((), dtype=h.dtype, device=h.device)


def _has_energy(field: Any) -> bool:
    return callable(getattr(field, "energy", None))


def _values(field: Any, h: Tensor) -> dict[str, Tensor]:
    """The velocity at a state and, where the field has one, the energy."""
    values = {"velocity": field(_zero(h), h)}
    if _has_energy(field):
        values["energy"] = field.energy(_zero(h), h)
    return values


def _require(good: bool | Tensor, why: str) -> None:
    if not bool(good):
        raise AssertionError(why)


def _close(found: Tensor, wanted: Tensor, roundings: float, size: Tensor | None = None) -> bool:
    """Equal up to so many roundings of the largest entry."""
    largest = wanted.abs().max() if size is None else size
    return bool(((found - wanted).abs() <= roundings * torch.finfo(wanted.dtype).eps * largest).all())


# -- the promises -----------------------------------------------------------------------------------------------------


def _shapes_and_types(field: Any, h: Tensor, others: _Others) -> None:
    before = h.clone()
    systems = systems_of(field, None).bind(h)
    shapes = {"velocity": h.shape, "energy": (systems.count,)}
    for name, value in _values(field, h).items():
        shape = shapes[name]
        _require(isinstance(value, Tensor), f"the {name} is {type(value).__name__}, not a tensor")
        _require(value.shape == shape, f"the {name} has shape {list(value.shape)}, not {list(shape)}")
        _require(value.dtype == h.dtype, f"the {name} is {value.dtype}, but h is {h.dtype}")
        _require(value.device == h.device, f"the {name} is on {value.device}, but h is on {h.device}")
    _require(torch.equal(before, h), "the state was changed in place")
    many = systems.spread(torch.zeros(systems.count, dtype=h.dtype, device=h.device))
    _require(field(many, h).shape == h.shape, f"with a time of shape {list(many.shape)} the result is not like h")


def _function_of_the_state(field: Any, h: Tensor, others: _Others) -> None:
    first, second = _values(field, h), _values(field, h)
    for name in first:
        _require(torch.equal(first[name], second[name]), f"two calls differ in the {name}: is there dropout in it?")
    if isinstance(field, nn.Module):
        with _mode(field, not field.training):
            other = _values(field, h)
        for name in first:
            _require(torch.equal(first[name], other[name]), f"training and evaluation mode differ in the {name}")


class _mode:  # noqa: N801
    """A module in training or evaluation mode, for a while."""

    def __init__(self, module: nn.Module, training: bool) -> None:
        self.module, self.training, self.before = module, training, module.training

    def __enter__(self) -> None:
        self.module.train(self.training)

    def __exit__(self, *exception: object) -> None:
        self.module.train(self.before)


def _no_grad(field: Any, h: Tensor, others: _Others) -> None:
    with torch.enable_grad():
        recorded = field(_zero(h), h.clone().requires_grad_()).detach()
    with torch.no_grad():
        quiet = field(_zero(h), h)
    _require(not quiet.requires_grad, "the result of a call under torch.no_grad() requires a gradient")
    _require(_close(quiet, recorded, ROUNDINGS), "the velocity under torch.no_grad() is another one")
    with torch.inference_mode():
        inferred = field(_zero(h), h.clone())
    _require(_close(inferred.clone(), recorded, ROUNDINGS), "the velocity under torch.inference_mode() is another one")


def _precision(field: Any, h: Tensor, others: _Others) -> None:
    if not isinstance(field, nn.Module):
        return
    name = "energy" if _has_energy(field) else "velocity"
    results = {}
    for dtype in (torch.float32, torch.float64):
        twin = copy.deepcopy(field).to(dtype)
        with torch.no_grad():
            values = _values(twin, h.to(dtype))
        for part, value in values.items():
            _require(value.dtype == dtype, f"in {dtype} the {part} is {value.dtype}")
        results[dtype] = values[name]
    if name == "velocity":  # where it turns quickly, it does so within the rounding of the state
        assume(_steady(twin, h.double()))
    assume(bool(torch.isfinite(results[torch.float32]).all()))
    single, double = results[torch.float32].double(), results[torch.float64]
    # Energies may cancel, most of all near a minimum; a hundredth catches a wrong computation all the same.
    largest = double.abs().max() if double.numel() else double.new_ones(())
    scale = torch.maximum(largest, torch.tensor(1e-30, dtype=torch.float64, device=h.device))
    _require(((single - double).abs() <= 1e-2 * scale).all(), f"float32 and float64 differ in the {name}")


def _dissipation(field: Any, h: Tensor, others: _Others) -> None:
    for t in (0.0, 1.0):
        assert_dissipates(field, h, t)


def _orthogonality(field: Any, h: Tensor, others: _Others) -> None:
    if not hasattr(field, "parts"):
        return
    with torch.no_grad():
        parts = field.parts(_zero(h), h)
    assert_tangent(parts.tangent, parts.gradient, systems_of(field, None).bind(h))


def _independence(field: Any, h: Tensor, others: _Others) -> None:
    systems = systems_of(field, None).bind(h)
    if systems.count < 2:
        return
    other = others.draw().detach()
    assume(other.shape == h.shape and _finite(field, other))
    with torch.no_grad():
        values = _values(field, h)
        for s in {0, systems.count - 1}:
            chosen = torch.zeros(systems.count, dtype=torch.bool, device=h.device)
            chosen[s] = True
            mine = {"velocity": systems.spread(chosen).expand_as(h), "energy": chosen}
            mixed = _values(field, torch.where(mine["velocity"], h, other))
            for name, value in values.items():
                same = _same(mixed[name][mine[name]], value[mine[name]])
                _require(same, f"the {name} of system {s} changes when another system does")
            if isinstance(systems, Rows):
                _alone(field, h, s, values)


def _same(found: Tensor, wanted: Tensor) -> bool:
    return bool(found.numel() == 0) or _close(found, wanted, ROUNDINGS)


def _alone(field: Any, h: Tensor, s: int, values: dict[str, Tensor]) -> None:
    row = h[s : s + 1]
    try:
        found = _values(field, row)
    except (RuntimeError, ValueError):
        return  # a field with coefficients of its own for each row cannot be called with one
    sizes = {name: value[s].abs().max() for name, value in values.items()}
    if hasattr(field, "parts"):  # the terms may cancel; their rounding does not
        parts = field.parts(_zero(h), row)
        sizes["velocity"] = torch.maximum(sizes["velocity"], (parts.beta.abs() * parts.direction.abs().max()).max())
    for name, value in values.items():
        same = _close(found[name][0], value[s], _OTHER_KERNELS, sizes[name])
        _require(same, f"the {name} of system {s} is another one alone")


def _gentle_times(field: Any, h: Tensor, steps: int) -> Tensor:
    """Times so short that the state moves by a thousandth of its size in all."""
    with torch.no_grad():
        speed = float(field(_zero(h), h).abs().max())
    size = float(h.abs().max())
    end = 1e-3 * (size or 1.0) / (speed or 1.0)
    return torch.linspace(0, min(max(end, 1e-12), 1.0), steps + 1, dtype=h.dtype, device=h.device)


def _odeint(field: Any, h: Tensor, others: _Others) -> None:
    t = _gentle_times(field, h, 2)
    ours = odeint(field, h, t, method="rk4")
    _require(ours.shape == (3, *h.shape), f"odeint gives shape {list(ours.shape)}")
    _require(torch.isfinite(ours).all(), "odeint leads to a state that is not finite")
    if importlib.util.find_spec("torchdiffeq"):
        theirs = odeint(field, h, t, method="rk4", backend="torchdiffeq", options={"step_size": float(t[1])})
        _require(_close(ours, theirs, _OTHER_KERNELS), "solvers and torchdiffeq disagree")
    if not field(_zero(h), h).requires_grad:
        _require(not ours.requires_grad, "the result of odeint requires a gradient, although nothing else does")


def _in_double(field: Any, h: Tensor) -> tuple[Any, Tensor]:
    return (copy.deepcopy(field).double() if isinstance(field, nn.Module) else field), h.double()


def _assume_smooth(field: Any, h: Tensor) -> None:
    """Leave out where finite differences mean nothing: they move by 1e-6, so h is to be neither small nor large."""
    assume(1e-2 <= float(h.abs().max()) <= 1e2 and _steady(field, h))


def _steady(field: Any, h: Tensor) -> bool:
    """Whether the energy's gradient, where there is one, or else the velocity does not turn quickly near a state.

    A Lyapunov field jumps where the gradient is zero.
    """
    systems = systems_of(field, None).bind(h)
    random = torch.Generator().manual_seed(0)
    aside = h + 1e-4 * h.abs().max() * torch.randn(h.shape, generator=random, dtype=h.dtype).to(h.device)
    here, there = (_gradient(field, state) if _has_energy(field) else _velocity(field, state) for state in (h, aside))
    return bool((length(systems, there - here) <= 0.1 * length(systems, here)).all())


@torch.no_grad()
def _velocity(field: Any, h: Tensor) -> Tensor:
    return field(_zero(h), h)


def _gradient(field: Any, h: Tensor) -> Tensor:
    state = h.detach().clone().requires_grad_()
    energy = field.energy(_zero(h), state)
    return torch.autograd.grad(energy.sum(), state)[0] if energy.requires_grad else torch.zeros_like(h)


def _at_scale_one(field: Any, h: Tensor) -> Callable[[Tensor], Tensor]:
    """The field in units of its size at a state, so that tolerances mean something."""
    with torch.no_grad():
        size = float(field(_zero(h), h).abs().max())
    return lambda x: field(_zero(x), x) / (size or 1.0)


def _needs_double(field: Any, h: Tensor) -> bool:
    return not isinstance(field, nn.Module) and h.dtype != torch.float64


def _gradients(field: Any, h: Tensor, others: _Others) -> None:
    if _needs_double(field, h):
        return
    twin, state = _in_double(field, h)
    _assume_smooth(twin, state)
    for training in (True, False):
        if isinstance(twin, nn.Module):
            twin.train(training)
        state = state.detach().requires_grad_()
        torch.autograd.gradcheck(_at_scale_one(twin, state), (state,), fast_mode=True, atol=1e-5, rtol=1e-3)
        parameters = [p for p in twin.parameters() if p.requires_grad] if isinstance(twin, nn.Module) else []
        if parameters:
            _check_parameters(twin, state.detach(), parameters, "training" if training else "evaluation")


def _check_parameters(field: nn.Module, h: Tensor, parameters: list[nn.Parameter], mode: str) -> None:
    """The derivative along one direction of all parameters, against a central difference."""
    random = torch.Generator().manual_seed(0)
    weights = torch.randn(h.shape, generator=random, dtype=h.dtype).to(h.device)
    directions = [torch.randn(p.shape, generator=random, dtype=p.dtype).to(p.device) for p in parameters]

    def value(step: float) -> Tensor:
        with torch.no_grad():
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=step)
            result = (field(_zero(h), h) * weights).sum()
            for p, d in zip(parameters, directions, strict=True):
                p.add_(d, alpha=-step)
        return result

    scalar = (field(_zero(h), h) * weights).sum()
    _require(scalar.requires_grad, f"in {mode} mode no gradient reaches the parameters")
    slopes = torch.autograd.grad(scalar, parameters, materialize_grads=True)
    exact = sum(((g * d).sum() for g, d in zip(slopes, directions, strict=True)), torch.zeros_like(scalar))
    estimates = [(value(step) - value(-step)) / (2 * step) for step in (1e-5, 1e-6)]
    size = max(float(exact.abs()), float(scalar.detach().abs()), 1e-6)
    off = min(float((exact - estimate).abs()) for estimate in estimates)
    _require(off <= 1e-3 * size, f"in {mode} mode the derivative in the parameters is off by {off:.2g} of {size:.2g}")


def _odeint_adjoint(field: Any, h: Tensor, others: _Others) -> None:
    if not isinstance(field, nn.Module):
        return
    twin, state = _in_double(field, h)
    _assume_smooth(twin, state)
    t = _gentle_times(twin, state, 2)
    backends: list[Backend] = ["solvers"]
    if importlib.util.find_spec("torchdiffeq"):
        backends.append("torchdiffeq")
    for backend in backends:
        slopes = []
        for adjoint in (False, True):
            start = state.clone().requires_grad_()
            end = odeint(
                twin, start, t, method="rk4", backend=backend, adjoint=adjoint, options={"step_size": float(t[1])}
            )[-1]
            slopes.append(torch.autograd.grad(end.square().sum(), start)[0])
        through, back = slopes
        off, size = float((through - back).abs().max()), float(through.abs().max())
        _require(off <= 1e-4 * size, f"the adjoint equation ({backend}) is off by {off:.2g}, of {size:.2g}")


def _double_backward(field: Any, h: Tensor, others: _Others) -> None:
    if _needs_double(field, h):
        return
    twin, state = _in_double(field, h)
    _assume_smooth(twin, state)
    state = state.detach().requires_grad_()
    torch.autograd.gradgradcheck(_at_scale_one(twin, state), (state,), fast_mode=True, atol=1e-4, rtol=1e-3)


_CHECKS: dict[str, Check] = {
    "shapes and types": _shapes_and_types,
    "function of the state": _function_of_the_state,
    "no_grad": _no_grad,
    "precision": _precision,
    "dissipation": _dissipation,
    "orthogonality": _orthogonality,
    "independence": _independence,
    "odeint": _odeint,
    "gradients": _gradients,
    "odeint_adjoint": _odeint_adjoint,
    "double backward": _double_backward,
}
_OF_ENERGIES = ("dissipation", "orthogonality")
PROMISES = tuple(_CHECKS)
"""The names of the promises, in the order in which they are checked."""
