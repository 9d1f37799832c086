"""What the solvers see of a user's field: one tensor, time running forward, systems bound to the state."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor

from .autograd import fresh, recording
from .packing import Packing
from .systems import Single, Systems
from .typing import Field, State


@runtime_checkable
class HasEnergy(Protocol):
    """A field with a Lyapunov function: what dissipative methods ask of a field. Nobody has to inherit from it.

    `energy(t, y)` gives one value per system, `[S]`; `systems` says what a system is.
    """

    systems: Systems

    def __call__(self, t: Tensor, y: Any) -> Any: ...

    def energy(self, t: Tensor, y: Any) -> Tensor: ...


def systems_of(field: Field, given: Systems | None) -> Systems:
    """The systems to integrate: as given, else the field's own, else the whole state as one.

    Independence is never assumed.
    """
    if given is None:
        given = getattr(field, "systems", None)
    if given is None:
        return Single()
    if not isinstance(given, Systems):
        raise TypeError(f"systems must be Single(), Rows() or Segments(index, count), got {type(given).__name__}")
    return given


@final
class Term:
    """A field bound to its systems, its arguments and a direction of time.

    Inside the solvers time always runs forward and the state is always one tensor; `Term` translates. Calls are
    counted in `calls`, those of the energy in `energy_calls`.
    """

    def __init__(
        self,
        field: Field,
        systems: Systems,
        like: Tensor,
        *,
        args: Any = None,
        packing: Packing | None = None,
        backward: bool = False,
        perturb: bool = False,
    ) -> None:
        self.field = field
        self.systems = systems.bind(like)
        self.args = () if args is None else (args,)
        self.packing = packing
        self.backward = backward
        self.perturb = perturb
        self.calls = 0
        self.energy_calls = 0
        self.shape, self.dtype, self.device = like.shape, like.dtype, like.device
        self.real_dtype = like.real.dtype
        self._checked = False
        self._parameters: bool | None = None

    @functools.cached_property
    def sizes(self) -> Tensor:
        """How many entries each system has, at least 1."""
        return self.systems.sizes.to(device=self.device, dtype=self.real_dtype).clamp(min=1)

    @property
    def has_energy(self) -> bool:
        return callable(getattr(self.field, "energy", None))

    # -- time ---------------------------------------------------------------------------------------------------

    def time(self, t: Tensor) -> Tensor:
        """Internal time `[S]` as the field expects it: its own direction, the state's precision, broadcastable."""
        return self.systems.spread(self._oriented(t))

    def _oriented(self, t: Tensor) -> Tensor:
        t = t.to(self.real_dtype)
        return -t if self.backward else t

    def stage_times(self, t0: Tensor, t1: Tensor, nodes: Sequence[float]) -> list[Tensor]:
        """The field's time at each node of a step from `t0` to `t1`, both `[...]`, as a list of `[...]`.

        With `perturb`, the ends are moved inward by one unit in the last place, so that a field that jumps at a grid
        point is seen from inside the step.
        """
        c = _nodes(tuple(nodes), t0.device, t0.dtype).reshape(-1, *(1,) * t0.ndim)
        times = list(self._oriented((1 - c) * t0 + c * t1).unbind(0))
        if self.perturb:
            inward = -1.0 if self.backward else 1.0
            for i, node in enumerate(nodes):
                if node in (0.0, 1.0):
                    towards = torch.full_like(times[i], inward * (1 if node == 0.0 else -1) * float("inf"))
                    moved = torch.nextafter(times[i].detach(), towards)
                    times[i] = times[i] + (moved - times[i].detach())
        return times

    # -- field --------------------------------------------------------------------------------------------------

    def __call__(self, t: Tensor, y: Tensor) -> Tensor:
        """dy/dt at internal time `t`, `[S]`."""
        return self.velocity(self.time(t), y)

    def first_velocity(self, t0: Tensor, t1: Tensor, y: Tensor) -> Tensor:
        """dy/dt at the start of a step from `t0` to `t1`; with `perturb`, as seen from inside the step."""
        if not self.perturb:
            return self(t0, y)
        (time,) = self.stage_times(t0, t1, (0.0,))
        return self.velocity(self.systems.spread(time), y)

    def velocity(self, time: Tensor, y: Tensor) -> Tensor:
        """dy/dt in the direction of the integration, where `time` is what the field itself gets."""
        f = self.field_at(time, y)
        return -f if self.backward else f

    def field_at(self, time: Tensor, y: Tensor) -> Tensor:
        """The field's own value, as one tensor."""
        self.calls += 1
        if self.packing is None:
            f = self.field(time, y, *self.args)
        else:
            f = self._pack_derivative(self.field(time, self.packing.unpack(y), *self.args))
        if not self._checked:
            self._check_derivative(f)
        checked: Tensor = f if f.dtype is self.dtype else f.to(self.dtype)
        return checked

    def _pack_derivative(self, parts: Any) -> Tensor:
        assert self.packing is not None
        shapes = [list(shape) for shape in self.packing.shapes]
        if not isinstance(parts, (tuple, list)) or not all(isinstance(part, Tensor) for part in parts):
            got = [_describe(part) for part in parts] if isinstance(parts, (tuple, list)) else _describe(parts)
            raise TypeError(f"the field must return a tuple of tensors of shapes {shapes}, got {got}")
        if [list(part.shape) for part in parts] != shapes:
            returned = [list(part.shape) for part in parts]
            raise ValueError(f"the field returned shapes {returned}, but the state has {shapes}")
        return self.packing.pack(parts)

    def _check_derivative(self, f: Any) -> None:
        wanted = f"a tensor of shape {list(self.shape)} on {self.device}, like the state, in {self.dtype}"
        if not isinstance(f, Tensor):
            raise TypeError(f"the field must return {wanted}; got {_describe(f)}")
        # Another precision, as under autocast, is cast to that of the state; a number of another kind is a mistake.
        kind = f.is_floating_point() or (f.is_complex() and self.dtype.is_complex)
        if f.shape != self.shape or not kind or f.device != self.device:
            raise ValueError(f"the field must return {wanted}; got shape {list(f.shape)}, {f.dtype}, on {f.device}")
        self._checked = True

    # -- energy -------------------------------------------------------------------------------------------------

    @property
    def energy_is_timed(self) -> bool:
        """Whether the energy may depend on time explicitly; a field says that it does not by `energy_is_timed`."""
        return bool(getattr(self.field, "energy_is_timed", True))

    def velocity_and_energy(self, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """dy/dt and the energy, `[S]`, at internal time `t`; in one evaluation if the field can do that."""
        both = getattr(self.field, "velocity_and_energy", None)
        if both is None or self.packing is not None or self.args or self.backward:
            return self(t, y), self.energy(t, y)
        self.calls += 1
        f, energy = both(self.time(t), y)
        if not self._checked:
            self._check_derivative(f)
        return f if f.dtype is self.dtype else f.to(self.dtype), energy

    def energy(self, t: Tensor, y: Tensor) -> Tensor:
        """The field's energy per system at internal time `t`, `[S]`."""
        self.energy_calls += 1
        state: State = y if self.packing is None else self.packing.unpack(y)
        value = self.field.energy(self.time(t), state, *self.args)  # type: ignore[attr-defined]
        if not isinstance(value, Tensor) or value.numel() != self.systems.count:
            raise ValueError(
                f"energy(t, y) must return one value for each of the {self.systems.count} systems, "
                f"got {_describe(value)}"
            )
        return value.reshape(self.systems.count)

    def energy_and_gradient(self, t: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Energy `[S]` and its gradient in the state; differentiable further where gradients are being recorded."""
        record = torch.is_grad_enabled() and (y.requires_grad or self._energy_has_parameters(t, y))
        with recording():
            point = y if record and y.requires_grad else fresh(y)
            value = self.energy(t, point)
            if value.requires_grad:
                (gradient,) = torch.autograd.grad(value.sum(), point, create_graph=record, materialize_grads=True)
            else:  # an energy that is the same everywhere
                gradient = torch.zeros_like(point)
        return (value, gradient) if record else (value.detach(), gradient)

    def _energy_has_parameters(self, t: Tensor, y: Tensor) -> bool:
        """Whether the energy depends on anything but the state that wants a gradient.

        Otherwise a solution would come out as requiring one although nothing that went in did.
        """
        if self._parameters is None:
            self._parameters = self.energy(t, y.detach()).requires_grad
        return self._parameters


_NODES: dict[tuple[Any, ...], Tensor] = {}


def _nodes(nodes: tuple[float, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Nodes of a method as a tensor, made once for each device: copying them there at every step would be slow."""
    if torch.compiler.is_compiling():
        return torch.tensor(nodes, device=device, dtype=dtype)
    key = (nodes, device, dtype)
    if key not in _NODES:
        with torch.inference_mode(False):
            _NODES[key] = torch.tensor(nodes, device=device, dtype=dtype)
    return _NODES[key]


def _describe(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"a tensor of shape {list(x.shape)}"
    return f"{type(x).__name__}"
