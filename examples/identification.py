"""Stable system identification: dynamics learned from a few noisy trajectories, with a guarantee and without.

Two systems are learned from short noisy trajectories and rolled out twelve times as long:

- A damped pendulum, which comes to rest. The energy is convex with its minimum at rest, `ConvexEnergy`, and alpha is
  a `DescentShare`: the field is what the network says wherever that lowers the energy fast enough. So the learned
  system comes to rest, from anywhere.
- An oscillator with a bent limit cycle. The energy is v^2 with v = |h|^2 - n(h) and a bounded network n, zero on a
  closed curve. There its gradient vanishes and the tangential part of the field runs on: a gradient flow would stand
  still. All level sets are bounded, so the learned system cannot run away, wherever it starts.

Each is compared with an unconstrained neural differential equation that has as many parameters to within 5 %, and the
same data, loss, optimiser, number of epochs and seeds. For the pendulum both know where rest is; that the oscillator
is bounded only the field with an energy knows. Activation and weight decay of each were chosen among the same
candidates by the error on validation trajectories of other seeds, as `--search --seeds 3` shows; the rollouts that are
reported had no part in it.

How the energy holds up depends on the method too. `relaxed_rk4` never raises it, at any step size; `rk4` promises
nothing. On the limit cycle the energy is zero and any step of finite size ends a little beside it, so that there the
promise is about the energy above a small floor.

Run as one of::

    python -m examples.identification                               # some minutes; results and figure go to demo/
    python -m examples.identification --quick --seeds 2 --out DIR
    python -m examples.identification --search --seeds 3            # validation errors of all candidates
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import lyapflow
from examples.terminal import find_figures, heading, say, table
from lyapflow import (
    ConvexEnergy,
    DescentShare,
    Field,
    Flow,
    LyapunovField,
    MLPCoefficient,
    MLPEnergy,
    MLPTangent,
    PointwiseEnergy,
    Rows,
    Tangent,
)
from solvers import Status

Kind = Literal["guaranteed", "unconstrained"]
Split = Literal["training", "validation", "test"]
KINDS: tuple[Kind, ...] = ("guaranteed", "unconstrained")
SPLITS: tuple[Split, ...] = ("training", "validation", "test")
WIDTHS = (32, 32)  # of the hidden layers of the energy and of the tangent
LEARNING_RATE = 1e-2
BALL = 3.0  # times the largest true radius: a rollout that leaves this ball diverges


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to do. Times are in units of 1 / the frequency of a small swing."""

    seeds: int
    trajectories: int = 16  # to train on, and as many to validate on
    horizon: float = 5.0  # of a trajectory
    spacing: float = 0.25  # of the observations, and the step of all rollouts
    noise: float = 0.05  # standard deviation of the observations
    slope_epochs: int = 1000
    window_epochs: int = 200
    window: int = 3  # observations to predict from one
    starts: int = 16  # of long rollouts, inside and as many outside
    long: float = 60.0  # how long these are

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")


FULL = Settings(seeds=5)
QUICK = Settings(seeds=1, slope_epochs=300, window_epochs=30, starts=6, long=20.0)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """What is chosen by the validation error."""

    activation: str
    weight_decay: float


CANDIDATES = tuple(itertools.starmap(Candidate, itertools.product(("silu", "tanh"), (0.0, 0.3))))
CHOSEN: dict[tuple[str, Kind], Candidate] = {
    ("pendulum", "guaranteed"): Candidate("tanh", 0.3),
    ("pendulum", "unconstrained"): Candidate("silu", 0.0),
    ("limit cycle", "guaranteed"): Candidate("silu", 0.0),
    ("limit cycle", "unconstrained"): Candidate("tanh", 0.3),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.identification", description="Dynamics learned with and without a guarantee."
    )
    parser.add_argument("--quick", action="store_true", help="train less, on one seed, and roll out less far")
    parser.add_argument("--seeds", type=int, help=f"how many (default: {FULL.seeds}, or {QUICK.seeds} with --quick)")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for results and figure (default: demo)")
    parser.add_argument("--search", action="store_true", help="only show the validation errors of all candidates")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    if options.seeds is not None:
        if options.seeds < 1:
            parser.error(f"--seeds must be at least 1, got {options.seeds}")
        settings = dataclasses.replace(settings, seeds=options.seeds)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other
    if options.search:
        search(settings)
        return

    start = time.perf_counter()
    results, showcases = run(settings)
    show(results)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    say(f"The results are in {write(results, options.out / 'identification.json')}.")
    figures = find_figures("identification_figures")
    if figures is None:
        say("No figure: matplotlib is not installed.")
    else:
        say(f"The figure is in {figures.draw(showcases, options.out / 'identification.png')}.")


# -- systems ----------------------------------------------------------------------------------------------------------


class Problem(ABC):
    """A system in the plane to identify.

    Attributes:
        name: In tables and figures.
        axes: What the two entries of a state are.
        limit: What the state ends up at.
        floor: What the learned energy has below this does not count for the promise that it never rises.
        inside: Radii of the starts in training, and of as many in the test.
        outside: Radii of other starts in the test, 1.5 to 2 times as far out.
    """

    name: str
    axes: tuple[str, str]
    limit: str
    floor: float
    inside: tuple[float, float]
    outside: tuple[float, float]

    @abstractmethod
    def velocity(self, t: Any, x: Tensor) -> Tensor:
        """The true field."""

    @abstractmethod
    def state(self, radius: Tensor, phase: Tensor) -> Tensor:
        """The state at a radius and a phase, as this system counts them."""

    @abstractmethod
    def distance(self, x: Tensor) -> Tensor:
        """How far a state is from where the system ends up."""

    @abstractmethod
    def direction(self, widths: tuple[int, int], activation: str) -> Tangent:
        """A network for the whole velocity, or for the tangent of the guaranteed field."""

    @abstractmethod
    def guaranteed(self, activation: str) -> LyapunovField:
        """A field with an energy that cannot rise."""

    def starts(self, count: int, radii: tuple[float, float], generator: torch.Generator) -> Tensor:
        low, high = radii
        radius, phase = torch.rand(2, count, generator=generator, dtype=torch.float64)
        return self.state(low + (high - low) * radius, 2 * math.pi * phase)

    def truth(self, starts: Tensor, times: Tensor) -> Tensor:
        """The true trajectories, `[T, N, 2]`."""
        return lyapflow.odeint(self.velocity, starts, times, method="dopri5")


class Pendulum(Problem):
    """A pendulum with friction, `a'' = -sin a - 0.1 a'`. The radius is the largest angle of a swing without it."""

    name = "pendulum"
    axes = ("angle", "angular velocity")
    limit = "rest"
    floor = 0.0
    inside = (0.2, 1.4)
    outside = (2.1, 2.8)

    def velocity(self, t: Any, x: Tensor) -> Tensor:
        angle, speed = x.unbind(-1)
        return torch.stack([speed, -angle.sin() - 0.1 * speed], dim=-1)

    def state(self, radius: Tensor, phase: Tensor) -> Tensor:
        top = torch.sin(radius / 2)  # so that the energy, 2 sin^2(angle / 2) + speed^2 / 2, is the same at all phases
        return torch.stack([2 * torch.asin(top * phase.cos()), 2 * top * phase.sin()], dim=-1)

    def distance(self, x: Tensor) -> Tensor:
        return x.norm(dim=-1)

    def direction(self, widths: tuple[int, int], activation: str) -> Tangent:
        return RestingAtZero(MLPTangent(2, widths, activation))

    def guaranteed(self, activation: str) -> LyapunovField:
        return LyapunovField(ConvexEnergy(2, WIDTHS), self.direction(WIDTHS, activation), alpha=DescentShare(0.02))


class RestingAtZero(Tangent):
    """A network less its value at zero, so that zero is a place of rest."""

    def __init__(self, network: MLPTangent) -> None:
        super().__init__()
        self.network = network

    def forward(self, h: Tensor) -> Tensor:
        return self.network(h) - self.network(torch.zeros_like(h[:1]))


class LimitCycle(Problem):
    """The normal form of a Hopf bifurcation, `r' = r (1 - r^2) / 2` and `phase' = 1`, in bent coordinates.

    A point (u, v) of the normal form is the state (u, v + u^2 / 2), so that the circle r = 1 becomes a bean.
    """

    name = "limit cycle"
    axes = ("$x_1$", "$x_2$")
    limit = "the cycle"
    floor = 1e-6  # on the cycle the energy is 0, and a step of any method ends a little beside it
    inside = (0.3, 1.5)
    outside = (2.25, 3.0)

    def velocity(self, t: Any, x: Tensor) -> Tensor:
        u, v = self._straight(x)
        growth = (1 - u**2 - v**2) / 2
        du, dv = growth * u - v, growth * v + u
        return torch.stack([du, dv + u * du], dim=-1)

    def state(self, radius: Tensor, phase: Tensor) -> Tensor:
        u, v = radius * phase.cos(), radius * phase.sin()
        return torch.stack([u, v + u**2 / 2], dim=-1)

    def distance(self, x: Tensor) -> Tensor:
        return (torch.hypot(*self._straight(x)) - 1).abs()

    def direction(self, widths: tuple[int, int], activation: str) -> Tangent:
        return MLPTangent(2, widths, activation)

    def guaranteed(self, activation: str) -> LyapunovField:
        # A bounded alpha: the descent then fades towards the cycle, where the gradient does, and the field is smooth.
        alpha = MLPCoefficient(2, 16, within="sigmoid", activation=activation)
        return LyapunovField(RingEnergy(WIDTHS), self.direction(WIDTHS, activation), alpha)

    def _straight(self, x: Tensor) -> tuple[Tensor, Tensor]:
        u, y = x.unbind(-1)
        return u, y - u**2 / 2


class RingEnergy(PointwiseEnergy):
    """`(|h|^2 - n(h))^2` with a bounded network n: zero on a closed curve, and every level set is bounded."""

    def __init__(self, widths: tuple[int, int]) -> None:
        super().__init__()
        self.network = MLPEnergy(2, widths, activation="tanh", bounded="none")

    def density(self, h: Tensor) -> Tensor:
        return (h.square().sum(-1) - self.network.density(h)).square()


PROBLEMS: tuple[Problem, ...] = (Pendulum(), LimitCycle())


# -- data -------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Data:
    """Noisy observations of trajectories, `[T, N, 2]`, at the times `[T]`."""

    times: Tensor
    training: Tensor
    validation: Tensor


def observe(problem: Problem, settings: Settings, seed: int) -> Data:
    times = time_grid(settings.horizon, settings.spacing)

    def noisy(split: Split) -> Tensor:
        generator = generator_of(split, seed)
        truth = problem.truth(problem.starts(settings.trajectories, problem.inside, generator), times)
        return truth + settings.noise * torch.randn(truth.shape, generator=generator, dtype=truth.dtype)

    return Data(times, noisy("training"), noisy("validation"))


def generator_of(split: Split, seed: int) -> torch.Generator:
    """Random numbers of their own for each split of each seed."""
    return torch.Generator().manual_seed(len(SPLITS) * seed + SPLITS.index(split))


def time_grid(end: float, spacing: float) -> Tensor:
    return torch.arange(round(end / spacing) + 1, dtype=torch.float64) * spacing


# -- models -----------------------------------------------------------------------------------------------------------


class Unconstrained(Field):
    """A neural differential equation: the velocity is what the network says."""

    systems = Rows()

    def __init__(self, network: Tangent) -> None:
        super().__init__()
        self.network = network

    def forward(self, t: Any, h: Tensor) -> Tensor:
        return self.network(h)


class Floored(Field):
    """A field for solvers that watch its energy: what the energy has below a floor does not count."""

    def __init__(self, field: LyapunovField, floor: float) -> None:
        super().__init__()
        self.field, self.systems, self.floor = field, field.systems, floor

    def forward(self, t: Any, h: Tensor) -> Tensor:
        return self.field(t, h)

    def energy(self, t: Any, h: Tensor) -> Tensor:
        return self.field.energy(t, h).clamp(min=self.floor)


def build(problem: Problem, kind: Kind, activation: str, seed: int) -> Field:
    """A model before training; the unconstrained one has the width that gives it as many parameters as the other."""
    torch.manual_seed(seed)
    guaranteed = problem.guaranteed(activation)
    if kind == "guaranteed":
        return guaranteed.double()
    wanted = parameters(guaranteed)
    width = min(
        range(2, 257), key=lambda width: abs(parameters(problem.direction((width, width), activation)) - wanted)
    )
    torch.manual_seed(seed)
    return Unconstrained(problem.direction((width, width), activation)).double()


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


# -- training ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Fit:
    """How the training of one model went."""

    problem: str
    model: Kind
    seed: int
    parameters: int
    seconds: float  # of the processor
    validation: float  # RMS distance from the validation observations, in rollouts over the horizon


def train(problem: Problem, kind: Kind, settings: Settings, seed: int, candidate: Candidate) -> tuple[Field, Fit]:
    start = time.process_time()
    data = observe(problem, settings, seed)
    model = build(problem, kind, candidate.activation, seed)
    slopes, windows = slope_loss(model, data), window_loss(model, data, settings.window)
    minimise(model, slopes, settings.slope_epochs, LEARNING_RATE, candidate.weight_decay)
    minimise(model, windows, settings.window_epochs, LEARNING_RATE / 5, candidate.weight_decay)
    seconds = time.process_time() - start
    return model, Fit(problem.name, kind, seed, parameters(model), seconds, validation_error(model, data))


def slope_loss(model: Field, data: Data) -> Callable[[], Tensor]:
    """Against central differences of the observations: cheap, and close enough to start from."""
    seen = data.training
    slopes = ((seen[2:] - seen[:-2]) / (data.times[2:] - data.times[:-2]).reshape(-1, 1, 1)).flatten(0, 1)
    states = seen[1:-1].flatten(0, 1)
    return lambda: (model(0.0, states) - slopes).square().mean()


def window_loss(model: Field, data: Data, length: int) -> Callable[[], Tensor]:
    """Against the next observations, in rollouts from every observation that has as many after it."""
    windows = data.training.unfold(0, length + 1, 1).permute(3, 0, 1, 2).flatten(1, 2)
    times = data.times[: length + 1]
    return lambda: (lyapflow.odeint(model, windows[0], times, method="rk4") - windows)[1:].square().mean()


def minimise(model: Field, loss: Callable[[], Tensor], epochs: int, learning_rate: float, weight_decay: float) -> None:
    """AdamW on all data at once, with a rate that rises and falls."""
    optimiser = torch.optim.AdamW(model.parameters(), weight_decay=weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, learning_rate, total_steps=epochs, pct_start=0.1)
    for _ in range(epochs):
        optimiser.zero_grad()
        loss().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()


@torch.no_grad()
def validation_error(model: Field, data: Data) -> float:
    seen = data.validation
    states = roll_out(model, seen[0], data.times, "rk4").states
    return float((states - seen)[1:].square().sum(-1).mean().sqrt())


# -- evaluation -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Rollout:
    """Where a model goes from some starts.

    Attributes:
        states: `[T, N, 2]`.
        energy: Of the model, `[T, N]`; None where it has none.
        failed: Which of them the solver could not finish, `[N]`.
    """

    states: Tensor
    energy: Tensor | None
    failed: Tensor

    def __getitem__(self, which: slice) -> Rollout:
        energy = None if self.energy is None else self.energy[:, which]
        return Rollout(self.states[:, which], energy, self.failed[which])


@dataclasses.dataclass(frozen=True)
class Score:
    """The rollouts of one model, by one method, from the starts of one region.

    Attributes:
        rms: The RMS distance from the truth over time, of each rollout. Outside of the ball a state counts as on it.
        diverging: The share of rollouts that leave the ball or are not finite.
        distance: From where the true system ends up, at the end; the median of all rollouts.
        largest_rise: Of the energy, from one saved time to the next; None without an energy.
    """

    problem: str
    model: Kind
    method: str
    region: str
    seed: int
    rms: list[float]
    diverging: float
    distance: float
    largest_rise: float | None


@dataclasses.dataclass(frozen=True)
class Showcase:
    """What the figure shows of one problem: the rollouts of one seed, by one method for each model."""

    problem: Problem
    horizon: float
    times: Tensor
    truth: Tensor
    inside: int  # how many of the starts are; the others lie outside
    fields: dict[Kind, Field]
    rollouts: dict[Kind, Rollout]


@torch.no_grad()
def roll_out(model: Field, starts: Tensor, times: Tensor, method: str) -> Rollout:
    """Follow the field in steps from one time to the next."""
    step_size = float(times[1] - times[0])
    flow = Flow(model, method, steps=len(times) - 1, step_size=step_size)
    solution = flow.solve(starts, saveat=times, throw=False)
    energy = solution.energy if hasattr(model, "energy") else None
    assert isinstance(solution.ys, Tensor)
    return Rollout(solution.ys, energy, solution.status != Status.SUCCESS)


def distances(states: Tensor, truth: Tensor) -> Tensor:
    """From the truth, `[T, N]`; no larger than the radius of the ball, for a state may be anywhere."""
    radius = ball(truth)
    return (states - truth).norm(dim=-1).nan_to_num(radius, radius).clamp(max=radius)


def ball(truth: Tensor) -> float:
    return BALL * float(truth.norm(dim=-1).max())


def methods_for(kind: Kind) -> tuple[str, ...]:
    return ("rk4", "relaxed_rk4") if kind == "guaranteed" else ("rk4",)


def evaluate(
    problem: Problem, models: dict[Kind, Field], settings: Settings, seed: int
) -> tuple[list[Score], Showcase]:
    """Long rollouts from test starts that training knew nothing of."""
    generator = generator_of("test", seed)
    regions = {"inside": problem.inside, "outside": problem.outside}
    starts = torch.cat([problem.starts(settings.starts, radii, generator) for radii in regions.values()])
    times = time_grid(settings.long, settings.spacing)
    truth = problem.truth(starts, times)
    scores, shown = [], {}
    for kind, model in models.items():
        judged = Floored(model, problem.floor) if isinstance(model, LyapunovField) else model
        for method in methods_for(kind):
            shown[kind] = roll_out(judged, starts, times, method)
            for i, region in enumerate(regions):
                part = slice(i * settings.starts, (i + 1) * settings.starts)
                scores.append(score(problem, kind, method, region, seed, shown[kind][part], truth[:, part]))
    return scores, Showcase(problem, settings.horizon, times, truth, settings.starts, models, shown)


def score(problem: Problem, kind: Kind, method: str, region: str, seed: int, rollout: Rollout, truth: Tensor) -> Score:
    states = rollout.states
    left = ~(states.norm(dim=-1) <= ball(truth)).all(dim=0)  # true for NaN as well
    rms = distances(states, truth).square().mean(dim=0).sqrt()
    distance = problem.distance(states[-1]).nan_to_num(math.inf).clamp(max=ball(truth)).median()
    rise = None if rollout.energy is None else largest_rise(rollout.energy)
    diverging = float((left | rollout.failed).double().mean())
    return Score(problem.name, kind, method, region, seed, rms.tolist(), diverging, float(distance), rise)


def largest_rise(energy: Tensor) -> float:
    """From one time to the next; where a rollout is not finite any more, its last finite rise counts."""
    rises = energy.diff(dim=0)
    return float(rises[rises.isfinite()].max())


# -- everything -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Results:
    settings: Settings
    fits: list[Fit]
    scores: list[Score]


def run(settings: Settings) -> tuple[Results, list[Showcase]]:
    """Train and evaluate both models of every problem, for every seed; what to show is of the first seed."""
    results, showcases = Results(settings, [], []), []
    for seed, problem in itertools.product(range(settings.seeds), PROBLEMS):
        models: dict[Kind, Field] = {}
        for kind in KINDS:
            models[kind], fit = train(problem, kind, settings, seed, CHOSEN[problem.name, kind])
            progress(f"seed {seed}, {problem.name}, {kind}: trained in {fit.seconds:.1f} s")
            results.fits.append(fit)
        start = time.process_time()
        scores, showcase = evaluate(problem, models, settings, seed)
        progress(f"seed {seed}, {problem.name}: rolled out in {time.process_time() - start:.1f} s")
        results.scores.extend(scores)
        if seed == 0:
            showcases.append(showcase)
    return results, showcases


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def search(settings: Settings) -> None:
    """The validation error of every candidate, on seeds that are used for nothing else."""
    heading("Validation errors")
    rows = []
    for problem, kind, candidate in itertools.product(PROBLEMS, KINDS, CANDIDATES):
        errors = []
        for seed in range(1000, 1000 + settings.seeds):
            _, fit = train(problem, kind, settings, seed, candidate)
            errors.append(fit.validation)
            progress(f"{problem.name}, {kind}, {candidate}, seed {seed}: {fit.validation:.4f}, {fit.seconds:.1f} s")
        chosen = "chosen" if CHOSEN[problem.name, kind] == candidate else ""
        error = f"{statistics.median(errors):.4f}"
        rows.append((problem.name, kind, candidate.activation, f"{candidate.weight_decay:g}", error, chosen))
    table("lllrrl", ("system", "model", "activation", "weight decay", "median error", ""), rows)


# -- report -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Row:
    """Scores of one model, method and region over all seeds."""

    problem: str
    model: Kind
    method: str
    region: str
    rms: float  # the median over the seeds of the median over rollouts
    lowest_rms: float  # the lowest of these medians
    highest_rms: float
    diverging: float  # the share of all rollouts
    distance: float  # the median over the seeds
    largest_rise: float | None  # of all


def summary(scores: Sequence[Score]) -> Iterator[Row]:
    groups: dict[tuple[str, Kind, str, str], list[Score]] = {}
    for one in scores:
        groups.setdefault((one.problem, one.model, one.method, one.region), []).append(one)
    for key, group in groups.items():
        medians = [statistics.median(one.rms) for one in group]
        rises = [one.largest_rise for one in group if one.largest_rise is not None]
        diverging = statistics.fmean(one.diverging for one in group)
        distance = statistics.median(one.distance for one in group)
        rms = statistics.median(medians)
        yield Row(*key, rms, min(medians), max(medians), diverging, distance, max(rises, default=None))


def show(results: Results) -> None:
    settings = results.settings
    for number, problem in enumerate(PROBLEMS, 1):
        heading(f"{number}. {problem.name.capitalize()}")
        show_fits(problem, results)
        say(
            f"Rolled out over {settings.long / settings.horizon:g} horizons, from {settings.starts} starts inside the "
            f"training region and {settings.starts} outside, 1.5 to 2 times as far out:"
        )
        show_scores(problem, [row for row in summary(results.scores) if row.problem == problem.name])
    say(
        "RMS is that of the distance from the truth over time: the median over the rollouts, then over the seeds, "
        "with its range over the seeds. Diverging is the share of rollouts that leave a ball of "
        f"{BALL:g} times the largest true radius. Distance is that from where the true system ends up, at the end. "
        "The largest rise of the learned energy is over all steps, rollouts and seeds; relaxed_rk4 promises "
        "that there is none. rk4 promises nothing, and at this step it may blow up where a learned field is stiff."
    )


def show_fits(problem: Problem, results: Results) -> None:
    settings = results.settings
    say(
        f"{settings.trajectories} trajectories, {settings.horizon:g} long, observed every {settings.spacing:g} with "
        f"noise of {settings.noise:g}, for each of {settings.seeds} seed{'s' if settings.seeds > 1 else ''}. The "
        "validation error is that of rollouts over the horizon, against noisy observations; median over the seeds:"
    )
    rows = []
    for kind in KINDS:
        fits = [fit for fit in results.fits if (fit.problem, fit.model) == (problem.name, kind)]
        error = f"{statistics.median(fit.validation for fit in fits):.4f}"
        rows.append((kind, f"{fits[0].parameters}", error, f"{statistics.median(fit.seconds for fit in fits):.1f}"))
    table("lrrr", ("model", "parameters", "validation error", "seconds"), rows)


def show_scores(problem: Problem, rows: Sequence[Row]) -> None:
    lines = []
    for row in rows:
        spread = f"{row.lowest_rms:.3f} to {row.highest_rms:.3f}"
        rise = "" if row.largest_rise is None else f"{row.largest_rise:.1e}"
        numbers = f"{row.rms:.3f}", spread, f"{100 * row.diverging:.0f} %", f"{row.distance:.1e}", rise
        lines.append((row.region, row.model, row.method, *numbers))
    lines.sort(key=lambda line: line[0])
    table(
        "lllrrrrr",
        ("starts", "model", "method", "RMS", "range", "diverging", f"from {problem.limit}", "rise"),
        lines,
    )


def write(results: Results, path: Path) -> Path:
    """All results as JSON, with what they were made with."""
    content = {
        "versions": {"torch": torch.__version__, "lyapflow": lyapflow.__version__},
        "settings": dataclasses.asdict(results.settings),
        "chosen": [
            {"problem": problem, "model": kind, **dataclasses.asdict(candidate)}
            for (problem, kind), candidate in CHOSEN.items()
        ],
        "fits": [dataclasses.asdict(fit) for fit in results.fits],
        "scores": [dataclasses.asdict(one) for one in results.scores],
        "summary": [dataclasses.asdict(row) for row in summary(results.scores)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    return path


if __name__ == "__main__":
    main()
