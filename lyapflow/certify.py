"""Measure what a field and a method do to the energy, and write it down as a :class:`Certificate`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from solvers import Method, Systems, Term
from solvers.autograd import outside_inference_mode
from solvers.progress import progress_bar
from solvers.term import systems_of

from .certificate import Certificate, Sampled
from .flow import Flow
from .inspection import Inspection, inspect_field

Sampler = Callable[[torch.Generator], Tensor]

_STATES_TRIED_FOR_STEPS = 5
_GROWTHS, _SHRINKAGES, _HALVINGS = 10, 20, 30


@outside_inference_mode
@torch.no_grad()
def certify(
    field: Any,
    h0: Tensor,
    t: float | None = None,
    *,
    steps: int | None = None,
    step_size: float | None = None,
    method: str | Method = "euler",
    samples: int = 256,
    sampler: Sampler | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    progress: bool = False,
) -> Certificate:
    """Follow a field from `h0`, look at its energy on the way and at sampled states, and say what was found.

    What is found is evidence, not proof: it holds where it was looked.

    Args:
        field: A field with `energy(t, h) -> [S]` and `systems`, such as a :class:`LyapunovField`; or a :class:`Flow`,
            which brings its own method and time.
        h0: The state at the start.
        t: How long to follow the field.
        steps: How many steps of a fixed size.
        step_size: Their size; two of `t`, `steps` and `step_size` give the third, as for :class:`Flow`.
        method: A name from :func:`solvers.methods` or a method.
        samples: How many states are sampled.
        sampler: Gives a state like `h0` from a random generator. By default states on the way are drawn, and moved by
            noise of a hundredth to three times their size.
        confidence: Of the bound on the share of states at which the energy grows.
        seed: Of the sampled states.
        progress: Show a progress bar.

    >>> import torch
    >>> from lyapflow import LyapunovField, Quadratic, certify
    >>> field = LyapunovField(Quadratic([1.0, 10.0]))
    >>> certificate = certify(field, torch.tensor([[0.0, 1.0]]), steps=10, step_size=0.1)
    >>> certificate.holds, round(float(certificate.largest_step), 3)  # Euler descends up to 2 / 10
    (True, 0.2)
    """
    if isinstance(field, Flow):
        given = {"t": t, "steps": steps, "step_size": step_size, "method": None if method == "euler" else method}
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"{name} comes with the Flow; leave it out, got {value}")
        flow, field = field, field.field
    else:
        flow = Flow(field, method, steps, step_size, t)
    _check(field, flow, h0, samples, confidence)
    bar = progress_bar(progress) or (lambda fraction: None)
    systems = systems_of(field, None).bind(h0)
    h0 = h0.detach()

    solution = flow.solve(h0, saveat="steps", throw=False)
    times = solution.ts if solution.ts.ndim == 2 else solution.ts[:, None].expand(-1, systems.count)
    states = solution.ys
    way = []
    for k, (time, state) in enumerate(zip(times, states, strict=True)):
        way.append(inspect_field(field, _for_field(systems, time, h0), state, systems))
        bar(0.4 * (k + 1) / len(states))
    energy = torch.stack([seen.energy for seen in way])
    allowed = torch.stack([seen.rounding for seen in way])

    stepper = _OneStep(field, systems, flow, h0)
    last = int(torch.isfinite(energy).all(1).long().cumprod(0).sum().clamp(min=1)) - 1  # before anything is lost
    picks = torch.linspace(0, last, min(_STATES_TRIED_FOR_STEPS, last + 1)).long().unique().tolist()
    largest_steps = []
    for k, pick in enumerate(picks):
        largest_steps.append(stepper.largest(times[pick], states[pick]))
        bar(0.4 + 0.2 * (k + 1) / len(picks))

    draw = sampler or _around(states, systems)
    sampled = _sample(field, systems, stepper, draw, samples, seed, confidence, lambda part: bar(0.6 + 0.4 * part))
    return Certificate(
        field=_name(field),
        method=_name_of_method(flow),
        dissipative=flow.guard or (isinstance(flow.method, Method) and flow.method.dissipative),
        dtype=str(h0.dtype).removeprefix("torch."),
        step_size=flow.step_size,
        time=flow.time,
        seed=seed,
        times=times.double(),
        energy=energy,
        status=solution.status,
        increase=_rise(energy, torch.zeros_like(energy)),
        risen=_rise(energy, allowed) > 0,
        rate=_worst([seen.rate for seen in way]),
        climbs=torch.stack([seen.rises for seen in way]).any(0),
        mismatch=_worst_if_any(way, "mismatch"),
        orthogonality=_worst_if_any(way, "orthogonality"),
        largest_step=torch.stack(largest_steps).amin(0),
        sampled=sampled,
        plane=_Plane(field, states) if h0.ndim == 2 and h0.shape[1] == 2 else None,
    )


@dataclasses.dataclass(frozen=True)
class _Plane:
    """What the picture of a field in the plane is drawn from."""

    field: Any
    states: Tensor


def _check(field: Any, flow: Flow, h0: Any, samples: int, confidence: float) -> None:
    if not callable(getattr(field, "energy", None)):
        raise TypeError(f"certify needs a field with energy(t, h) -> [S]; {_name(field)} has none")
    if not isinstance(h0, Tensor) or h0.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"h0 must be a tensor of float32 or float64, got {getattr(h0, 'dtype', type(h0).__name__)}")
    if h0.numel() == 0:
        raise ValueError(f"h0 has no entries (shape {list(h0.shape)}): there is nothing to certify")
    if flow.backend != "solvers":
        raise ValueError('certify needs a Flow with backend="solvers"')
    if samples < 1:
        raise ValueError(f"samples must be at least 1, got {samples}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")


def _name(field: Any) -> str:
    return getattr(field, "__name__", type(field).__name__)


def _name_of_method(flow: Flow) -> str:
    name = flow.method if isinstance(flow.method, str) else flow.method.name
    return f"guarded {name}" if flow.guard else name


def _for_field(systems: Systems, t: Tensor, h: Tensor) -> Tensor:
    """A time per system in the shape that a field gets it in."""
    return systems.spread(t.to(h.dtype))


def _rise(energy: Tensor, allowed: Tensor) -> Tensor:
    """The largest rise of each system's energy from one state to the next, beyond what is allowed; 0 if none."""
    if len(energy) < 2:
        return torch.zeros_like(energy[0])
    rises = energy.diff(dim=0) - allowed[:-1]
    # An energy that is lost counts as a rise without bounds, unless it was lost before.
    lost = ~torch.isfinite(energy[1:]) & torch.isfinite(energy[:-1])
    rises = torch.where(lost, float("inf"), torch.nan_to_num(rises, 0.0, 0.0, 0.0))
    return rises.amax(0).clamp(min=0)


def _worst(values: list[Tensor]) -> Tensor:
    return torch.stack(values).amax(0)


def _worst_if_any(way: list[Inspection], name: str) -> Tensor | None:
    values = [getattr(seen, name) for seen in way]
    return None if values[0] is None else _worst(values)


class _OneStep:
    """Single steps of a method from any state, each system with a step size of its own."""

    def __init__(self, field: Any, systems: Systems, flow: Flow, like: Tensor) -> None:
        assert isinstance(flow.method, Method)
        self.field, self.systems, self.method = field, systems, flow.method
        self.flow = flow
        self.term = Term(field, systems, like)
        self.step_size = None if flow.chooses_steps else flow.step_size
        self.time = flow.time

    def raises(self, t: Tensor, h: Tensor, before: Inspection) -> Tensor:
        """In which systems a step of the flow raises the energy beyond rounding: `[S]`."""
        assert self.step_size is not None
        if not self.flow.guard:
            return ~self._descends(t, h, torch.full_like(t, self.step_size), before)
        one = Flow(self.field, self.method, 1, self.step_size, start=float(t[0]), guard=True)
        after = self.term.energy(t, one.solve(h, throw=False).y1)
        return ~(torch.isfinite(after) & (after <= before.energy + before.rounding))

    def _descends(self, t: Tensor, h: Tensor, dt: Tensor, before: Inspection) -> Tensor:
        step = self.method.step(self.term, t, t + dt.to(t.dtype), h, None, None)
        after = self.term.energy(step.t1, step.y1)
        good = torch.isfinite(after) & (after <= before.energy + before.rounding)
        return good if step.failed is None else good & ~step.failed

    def largest(self, t: Tensor, h: Tensor) -> Tensor:
        """The largest step size of each system that does not raise its energy: the first at which it does, going up
        in factors of 4 and then bisecting. Infinity if none does up to a million times the step, 0 if all do.
        """
        if self.flow.guard:  # which shortens any step that does
            return torch.full_like(t.double(), float("inf"))
        before = inspect_field(self.field, _for_field(self.systems, t, h), h, self.systems)
        t = t.double()
        begin = self.step_size or 1e-3 * self.time
        good = torch.full_like(t, 0.0)
        bad = torch.full_like(t, float("inf"))
        dt = torch.full_like(t, begin)
        for _ in range(_GROWTHS):  # up from where it descends
            descends = self._descends(t, h, dt, before)
            bad = torch.where(~descends & torch.isinf(bad), dt, bad)
            good = torch.where(descends & torch.isinf(bad), dt, good)
            if not bool(torch.isinf(bad).any()):
                break
            dt = torch.where(torch.isinf(bad), 4 * dt, dt)
        for _ in range(_SHRINKAGES):  # down from where it does not
            searching = (good == 0) & torch.isfinite(bad)
            if not bool(searching.any()):
                break
            dt = torch.where(searching, bad / 4, dt)
            descends = self._descends(t, h, dt, before)
            good = torch.where(searching & descends, dt, good)
            bad = torch.where(searching & ~descends, dt, bad)
        between = (good > 0) & torch.isfinite(bad)
        for _ in range(_HALVINGS if bool(between.any()) else 0):
            middle = torch.where(between, (good * bad).sqrt(), begin)
            descends = self._descends(t, h, middle, before)
            good = torch.where(between & descends, middle, good)
            bad = torch.where(between & ~descends, middle, bad)
        return torch.where(torch.isinf(bad), bad, good)


def _around(states: Tensor, systems: Systems) -> Sampler:
    """States on the way, moved by noise of a hundredth to three times the size of each system.

    What has run away from the start is left out: far out any energy overflows, which says nothing about the field.
    """
    reach = 10 * float(states[0].abs().max())
    near = [state for state in states if float(state.abs().max()) <= reach]  # false for NaN as well
    pool = torch.stack(near or [states[0]])

    def draw(generator: torch.Generator) -> Tensor:
        pick = int(torch.randint(len(pool), (1,), generator=generator))
        state = pool[pick]
        size = (systems.inner(state, state) / systems.sizes.to(state).clamp(min=1)).sqrt()
        size = torch.where(size > 0, size, 1.0)
        spread = size * 10 ** (torch.rand(len(size), generator=generator, dtype=size.dtype).to(size) * 2.5 - 2)
        noise = torch.randn(state.shape, generator=generator, dtype=state.dtype).to(state)
        return state + systems.spread(spread) * noise

    return draw


def _sample(
    field: Any,
    systems: Systems,
    stepper: _OneStep,
    draw: Sampler,
    samples: int,
    seed: int,
    confidence: float,
    report: Callable[[float], None],
) -> Sampled:
    generator = torch.Generator().manual_seed(seed)
    climbing, stepping = (torch.zeros(systems.count, dtype=torch.int64) for _ in range(2))
    worst = torch.full((systems.count,), -float("inf"), dtype=torch.float64)
    for k in range(samples):
        state = draw(generator)
        if state.shape != (stepper.term.shape):
            raise ValueError(f"sampler must give states of shape {list(stepper.term.shape)}, got {list(state.shape)}")
        t = torch.rand(1, generator=generator, dtype=torch.float64).to(state.device) * stepper.time
        t = t.expand(systems.count)
        seen = inspect_field(field, _for_field(systems, t, state), state, systems)
        climbing += seen.rises.cpu()
        worst = torch.maximum(worst, seen.rate.double().cpu().nan_to_num(float("inf")))
        if stepper.step_size is not None:
            stepping += stepper.raises(t, state, seen).cpu()
        report((k + 1) / samples)
    return Sampled(
        states=samples,
        climbing=climbing,
        stepping=None if stepper.step_size is None else stepping,
        worst_rate=worst,
        confidence=confidence,
    )
