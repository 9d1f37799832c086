"""A tangent that has learned Newton's direction, against gradient flow on ill-conditioned energies.

A Lyapunov field moves along the level sets of its energy as freely as down its gradient, so it can follow Newton's
direction N, which does not care how ill-conditioned the energy is. Here an `MLPTangent` is trained towards it:
`newton_split` gives the targets and `newton_gap`, the distance of the field from Newton's flow, is the loss. Then the
steps are counted that it takes from fresh starts to a millionth of the energy, which is 0 at the minimum.

What is learned and what is not:

- The tangent is a plain perceptron of the state; it knows neither the minimum nor the Hessian.
- Alpha is `DescentShare(rate=1)`, which has no parameters. Where the perceptron M lowers the energy V at the rate of V
  or faster (Newton's flow does at about 2 V), the field is M itself. Elsewhere, gradient descent makes up for it. A
  perceptron for alpha would have to span the four decades between the inverse eigenvalues.
- The targets need Newton's direction on the states to train on, which lie along Newton's flow from random starts. What
  the learned flow saves is the Hessian afterwards, not in training.
- Close to the minimum the relative error of a perceptron grows, and there gradient descent has to make up for more and
  more. A millionth of the energy is well above that floor; a far stricter goal would not be.

Run as one of::

    python -m examples.learned_newton                     # some minutes; the figure goes to demo/
    python -m examples.learned_newton --quick --out DIR   # gradient flow is given up early
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.terminal import heading, say, table
from lyapflow import (
    DescentShare,
    Energy,
    LogSumExp,
    LyapunovField,
    MLPTangent,
    NewtonTangent,
    PointwiseEnergy,
    Quadratic,
    Rows,
    newton_gap,
    newton_split,
)
from solvers import Status, Step, Stop, Term, solve

DIMENSION = 8
CONDITION = 1e4
GOAL = 1e-6  # of the energy at the start, where a flow has arrived
STEP_SIZES = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25)  # for flows in Newton's time, in which a step of 1 arrives
# Armijo's backtracking tries longer steps than Euler could take: one that is cut short damps the steep directions.
ARMIJO_FACTOR = 5.0
METHODS = ("euler", "armijo_euler")


@dataclasses.dataclass(frozen=True)
class Settings:
    """How much to do."""

    iterations: int  # of training
    states: int  # to train on
    starts: int  # to count steps from
    limit: int  # of steps


QUICK = Settings(iterations=600, states=2048, starts=64, limit=400)
FULL = Settings(iterations=4000, states=8192, starts=64, limit=40_000)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m examples.learned_newton", description="Newton's direction, learned."
    )
    parser.add_argument("--quick", action="store_true", help="train less, and give up on gradient flow early")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the figure (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="of energies, states, starts and networks (default: 0)")
    options = parser.parse_args(arguments)
    settings = QUICK if options.quick else FULL
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

    start = time.perf_counter()
    results = {}
    for number, title in enumerate(ENERGIES, 1):
        torch.manual_seed(options.seed)
        heading(f"{number}. {title}")
        results[title] = race(ENERGIES[title](), settings)
        show(results[title], settings)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    if importlib.util.find_spec("matplotlib") is None:
        say("No figure: matplotlib is not installed.")
    else:
        say(f"The figure is in {draw(results, options.out / 'learned_newton.png')}.")


# -- energies ---------------------------------------------------------------------------------------------------------


class BentBowl(PointwiseEnergy):
    """An ill-conditioned bowl and a smooth maximum of planes: its Hessian changes from place to place.

    Their minimum is subtracted, so that it is 0, as `DescentShare` wants it.
    """

    def __init__(self, bowl: Quadratic, planes: LogSumExp) -> None:
        super().__init__()
        self.bowl, self.planes, self.lowest = bowl, planes, 0.0
        # Newton's method, with shorter steps where the full ones would not descend.
        start = torch.zeros(1, DIMENSION, dtype=torch.float64)
        minimum: Any = solve(newton_flow(self), start, 0.0, 50.0, method="armijo_euler", dt0=1.0).y1
        self.lowest = float(self(minimum))

    def density(self, h: Tensor) -> Tensor:
        return self.bowl.density(h) + self.planes.density(h) - self.lowest


def bowl() -> Quadratic:
    """A quadratic energy of the condition wanted, in a random basis, with its minimum at a random place."""
    basis = torch.linalg.qr(torch.randn(DIMENSION, DIMENSION, dtype=torch.float64)).Q
    reach = torch.tensor(CONDITION).log10() / 2
    eigenvalues = torch.logspace(-reach, reach, DIMENSION, dtype=torch.float64)
    matrix = (basis * eigenvalues) @ basis.T
    return Quadratic((matrix + matrix.T) / 2, center=random_states(1)[0] / 2)


def bent_bowl() -> BentBowl:
    """A bowl, and six planes with slopes that it has at random places: no direction is bent out of proportion."""
    plain = bowl()
    return BentBowl(plain, LogSumExp(random_states(6) @ plain.matrix / 2, temperature=20.0))


ENERGIES = {"A quadratic energy": bowl, "A bent one: quadratic plus log-sum-exp": bent_bowl}


def random_states(count: int) -> Tensor:
    return torch.randn(count, DIMENSION, dtype=torch.float64)


# -- flows ------------------------------------------------------------------------------------------------------------


def newton_flow(energy: Energy) -> LyapunovField:
    """dh/dt = -N."""
    return LyapunovField(energy, NewtonTangent(energy), alpha=DescentShare())


def states_on_the_way(energy: Energy, count: int) -> Tensor:
    """States along Newton's flow from random starts.

    The distance from the minimum falls as exp(-t), so that times spread evenly are distances at every scale, here down
    to 5 %. Closer ones are of little use: see the remark on the floor above.
    """
    solution = solve(
        newton_flow(energy), random_states(count), 0.0, 3.0, method="armijo_euler", dt0=0.25, saveat="steps"
    )
    path: Any = solution.ys
    return path[torch.randint(len(path), (count,)), torch.arange(count)]


def train(energy: Energy, settings: Settings) -> LyapunovField:
    """A field whose tangent is trained towards Newton's direction."""
    tangent = MLPTangent(DIMENSION, hidden=(64, 64)).double()
    field = LyapunovField(energy, tangent, alpha=DescentShare(rate=1.0))
    states = states_on_the_way(energy, settings.states)
    optimizer = torch.optim.Adam(field.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-2, total_steps=settings.iterations)
    targets = newton_split(energy, states)
    for _ in range(settings.iterations):
        batch = torch.randint(settings.states, (256,))
        chosen = dataclasses.replace(targets, direction=targets.direction[batch])
        loss = newton_gap(field, states[batch], chosen, Rows()).mean()
        optimizer.zero_grad()
        loss.backward()
        # Where gradient descent makes up for the perceptron the loss is steep: unclipped, long trainings may diverge.
        torch.nn.utils.clip_grad_norm_(field.parameters(), 0.1)
        optimizer.step()
        schedule.step()
    return field


def best_gradient_step(energy: Energy, states: Tensor) -> float:
    """The best fixed step of gradient descent, 2 / (lmax + lmin), with the extreme eigenvalues over the states."""
    split = newton_split(energy, states)
    return 2 / float(split.largest.max() + split.smallest.min())


# -- counting steps ---------------------------------------------------------------------------------------------------


class Arrival(Stop):
    """Stops a system at its target energy, `[S]`, and keeps the energies after every step."""

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.energies: list[Tensor] = []

    def met(self, term: Term, step: Step) -> Tensor:
        self.energies.append(term.energy(step.t1, step.y1))
        return self.energies[-1] <= self.target


@dataclasses.dataclass(frozen=True)
class Descent:
    """What a flow made of its starts.

    Attributes:
        flow: Its name.
        method: The method that took the steps.
        step_size: Their size.
        steps: How many it took each system to arrive, `[S]`; infinity where it did not within the limit.
        energies: Relative to the start, after every step, `[steps + 1, S]`; a system that has ended keeps its last.
        rises: How many of all steps raised the energy.
    """

    flow: str
    method: str
    step_size: float
    steps: Tensor
    energies: Tensor
    rises: int

    @property
    def median(self) -> float:
        return float(self.steps.median())

    @property
    def worst(self) -> float:
        return float(self.steps.max())


@torch.no_grad()
def descend(flow: str, field: LyapunovField, starts: Tensor, method: str, step_size: float, limit: int) -> Descent:
    """Follow a field from the starts until all have arrived, or the limit of steps is reached."""
    start = field.energy(0.0, starts)
    arrival = Arrival(GOAL * start)
    solution = solve(
        field, starts, 0.0, limit * step_size, method=method, dt0=step_size, stop=arrival, max_steps=limit, throw=False
    )
    taken = solution.stats["accepted"]
    energies = torch.stack([start, *arrival.energies])
    count = torch.arange(len(energies)).unsqueeze(1)
    energies = energies.gather(0, torch.minimum(count, taken))  # what a system that ended does afterwards is no step
    return Descent(
        flow=flow,
        method=method,
        step_size=step_size,
        steps=torch.where(solution.status == Status.STOPPED, taken.double(), float("inf")),
        energies=energies / start,
        rises=int((energies.diff(dim=0) > 0).sum()),
    )


def best_step_size(field: LyapunovField, starts: Tensor, method: str) -> float:
    """The step size with which the slowest of the starts arrives first."""
    trials = [descend("", field, starts, method, size, limit=60) for size in STEP_SIZES]
    return min(trials, key=lambda trial: (trial.worst, trial.median)).step_size


@dataclasses.dataclass(frozen=True)
class Race:
    """All flows down one energy."""

    condition: tuple[float, float]  # from and to
    training_time: float
    gap: float
    descents: list[Descent]

    def of(self, flow: str, method: str) -> Descent:
        return next(descent for descent in self.descents if (descent.flow, descent.method) == (flow, method))


def race(energy: Energy, settings: Settings) -> Race:
    """Train, choose step sizes on some states, and count steps from others."""
    before = time.perf_counter()
    learned = train(energy, settings)
    training_time = time.perf_counter() - before
    validation, starts = random_states(32), random_states(settings.starts)
    unseen = states_on_the_way(energy, 512)
    split = newton_split(energy, unseen)
    condition = split.largest / split.smallest
    with torch.no_grad():
        gap = float(newton_gap(learned, unseen, split, Rows()).median())
    euler_step = best_gradient_step(energy, unseen)
    sizes = {"euler": euler_step, "armijo_euler": ARMIJO_FACTOR * euler_step}
    descents = []
    for method in METHODS:
        gradient = LyapunovField(energy)
        descents.append(descend("gradient flow", gradient, starts, method, sizes[method], settings.limit))
        for name, field in (("learned flow", learned), ("Newton's flow", newton_flow(energy))):
            size = best_step_size(field, validation, method)
            descents.append(descend(name, field, starts, method, size, settings.limit))
    return Race((float(condition.min()), float(condition.max())), training_time, gap, descents)


def show(result: Race, settings: Settings) -> None:
    low, high = result.condition
    say(
        f"In {DIMENSION} dimensions, with a Hessian of condition {low:.0f} to {high:.0f}. The tangent was trained in "
        f"{result.training_time:.0f} seconds; on unseen states the median of |f + N|^2 / |N|^2 is {result.gap:.1e}. "
        f"Steps to {GOAL:g} of the energy, from {settings.starts} fresh starts:"
    )
    rows = []
    for descent in result.descents:
        arrived = int(descent.steps.isfinite().sum())
        counts = [f"{n:.0f}" if n < float("inf") else f"> {settings.limit}" for n in (descent.median, descent.worst)]
        rows.append(
            (descent.flow, descent.method, f"{descent.step_size:.3g}", *counts, f"{arrived}", f"{descent.rises}")
        )
    table("llrrrrr", ("flow", "method", "step size", "median", "worst", "arrived", "rising steps"), rows)
    say(" ".join(verdict(result, method, settings.limit) for method in METHODS))


def verdict(result: Race, method: str, limit: int) -> str:
    gradient, learned = (result.of(flow, method) for flow in ("gradient flow", "learned flow"))
    many, few = gradient.median, learned.median
    if few > limit:
        return f"By {method}, the learned flow does not arrive, in the median."
    least = "more than " if many > limit else ""
    ratio = f"{least}{min(many, limit) / few:.0f}"
    return f"By {method}, gradient flow needs {ratio} times the steps of the learned flow, in the median."


# -- the figure -------------------------------------------------------------------------------------------------------

# Colours that remain distinct without red and green; methods differ by their line as well.
COLORS = {"gradient flow": "#d55e00", "learned flow": "#0072b2", "Newton's flow": "#000000"}
# Where both methods do the same, the thin dashes lie on the broad line.
LINES: dict[str, dict[str, Any]] = {
    "euler": {"ls": "-", "lw": 4.0, "alpha": 0.45},
    "armijo_euler": {"ls": (0, (3, 1.5)), "lw": 1.6},
}


def draw(results: dict[str, Race], path: Path) -> Path:
    """The energy over the number of steps: the median of all starts, and the range of nine tenths of them."""
    import matplotlib.pyplot as plt

    from examples.solvers_figures import STYLE, save

    with plt.rc_context({**STYLE, "font.size": 11, "axes.titlesize": 12}):
        figure, panels = plt.subplots(1, 2, figsize=(12, 5.4), sharey=True)
        figure.subplots_adjust(left=0.075, right=0.985, top=0.93, bottom=0.25, wspace=0.06)
        for axes, (title, result) in zip(panels, results.items(), strict=True):
            axes.axhline(GOAL, color="#57606a", lw=1, ls=":")
            for descent in result.descents:
                draw_descent(axes, descent)
            axes.set_xscale("symlog", linthresh=1, linscale=0.4)
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set(yscale="log", ylim=(1e-9, 3), xlim=(0, None), title=title, xlabel="steps")
            axes.grid(alpha=0.25)
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": "right"}
        panels[0].annotate("the goal", (1, GOAL), (-4, -15), color="#57606a", **place)
        panels[0].set_ylabel("energy, relative to the start")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=2, columnspacing=3)
        return save(figure, path)


def draw_descent(axes: Any, descent: Descent) -> None:
    last = len(descent.energies) - 1
    # A thousand points are enough of a curve on a logarithmic axis.
    shown = torch.logspace(0, torch.tensor(last + 1.0).log10(), 1000).long().clamp(max=last + 1).unique() - 1
    low, middle, high = descent.energies[shown].quantile(torch.tensor([0.05, 0.5, 0.95]).double(), dim=1)
    color = COLORS[descent.flow]
    axes.fill_between(shown, low, high, color=color, alpha=0.08, lw=0)
    axes.plot(shown, middle, color=color, label=f"{descent.flow}, {descent.method}", **LINES[descent.method])


if __name__ == "__main__":
    main()
