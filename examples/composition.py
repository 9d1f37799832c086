"""Flows as layers: an encoder, two flows and a readout, trained end to end with either backend.

The model is an `nn.Sequential`. Its first flow follows a Lyapunov field with a learned energy, tangent, alpha and beta.
Its second one follows a field put together by the field algebra: a motion along the level sets of another energy, which
fades with time, and a descent of that energy, which does not. Both parts have the same energy, so their sum has one
too, and dissipative methods take it.

The task is to tell two spirals apart. The same initial weights are trained with the project's own solvers and with
torchdiffeq, by forward Euler; then other solvers are put into the trained model, without training again. That they
find much the same is not a matter of course: trained hard enough, a model comes to rely on the errors of its solver.
Here energies with a bounded slope, bounded coefficients and weight decay keep its fields gentle.

Run as one of::

    python -m examples.composition                     # the figure goes to demo/
    python -m examples.composition --quick --out DIR
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.util
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.terminal import heading, say, table
from lyapflow import AntisymmetricTangent, Flow, LyapunovField, MLPCoefficient, MLPEnergy, MLPTangent
from lyapflow.flow import Backend
from solvers import methods

CHANNELS = 8
STEPS = 5
TIME = 2.0  # of each flow
BACKENDS: tuple[Backend, ...] = ("solvers", "torchdiffeq")
SWAPPED = ("euler", "rk4", "dopri5", "armijo_euler", "discrete_gradient")

Points = tuple[Tensor, Tensor]  # [n, 2] and their classes, [n]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.composition", description="Flows as layers of a model.")
    parser.add_argument("--quick", action="store_true", help="train less")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the figure (default: demo)")
    parser.add_argument("--seed", type=int, default=0, help="of the data and the weights (default: 0)")
    options = parser.parse_args(arguments)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # the tensors are small: threads would only wait for each other

    start = time.perf_counter()
    known, held_out = spirals(256), spirals(500)
    model = build()
    backends = [name for name in BACKENDS if name == "solvers" or importlib.util.find_spec(name)]
    models = {name: with_flows(copy.deepcopy(model), "euler", name) for name in backends}
    if len(backends) == 2:
        show_agreement(model, held_out[0])
    show_training(models, known, held_out, 100 if options.quick else 400)
    show_swaps(models["solvers"], held_out)
    heading(f"Done in {time.perf_counter() - start:.0f} seconds")
    if importlib.util.find_spec("matplotlib") is None:
        say("No figure: matplotlib is not installed.")
    else:
        say(f"The figure is in {draw(models['solvers'], held_out, options.out / 'composition.png')}.")


# -- the task and the model -------------------------------------------------------------------------------------------


def spirals(count: int) -> Points:
    """Points on two spirals of one turn, with some noise."""
    label = torch.arange(count) % 2
    radius = torch.rand(count).sqrt()
    angle = 2 * math.pi * radius + math.pi * label
    points = 2 * torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return points + 0.05 * torch.randn(count, 2), label


class Fading(nn.Module):
    """A gate in time, exp(-rate t), with a learned rate.

    It is smooth: an adaptive solver may step over the kinks of a `Window` without noticing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.zeros(()))

    def forward(self, t: float | Tensor) -> Tensor:
        return torch.exp(-self.log_rate.exp() * t)


def build() -> nn.Sequential:
    """An encoder, two flows and a readout."""

    def energy() -> MLPEnergy:
        return MLPEnergy(CHANNELS, hidden=32, activation="tanh", bounded="softplus")

    first = LyapunovField(
        energy(),
        MLPTangent(CHANNELS, hidden=32, last_activation="tanh"),
        alpha=MLPCoefficient(CHANNELS, hidden=16, scale=4.0),
        beta=MLPCoefficient(CHANNELS, hidden=16, scale=2.0),
    )
    shared = energy()
    along = LyapunovField(shared, AntisymmetricTangent(CHANNELS), alpha=0.0)
    down = LyapunovField(shared, alpha=MLPCoefficient(CHANNELS, hidden=16, scale=4.0))
    second = along.gated(Fading()) + down
    return nn.Sequential(
        nn.Linear(2, CHANNELS),
        Flow(first, steps=STEPS, time=TIME),
        Flow(second, steps=STEPS, time=TIME),
        nn.Linear(CHANNELS, 2),
    )


def with_flows(model: nn.Sequential, method: str, backend: Backend = "solvers") -> nn.Sequential:
    """The same layers, with the same parameters, whose flows use another method or backend."""
    steps = None if methods()[method].adaptive else STEPS
    layers = [
        Flow(layer.field, method, steps, time=TIME, backend=backend) if isinstance(layer, Flow) else layer
        for layer in model
    ]
    return nn.Sequential(*layers)


# -- the same outputs -------------------------------------------------------------------------------------------------


@torch.no_grad()
def largest_difference(model: nn.Sequential, x: Tensor, method: str) -> float:
    """Between the outputs of the two backends."""
    ours, theirs = (with_flows(model, method, backend)(x) for backend in BACKENDS)
    return float((ours - theirs).abs().max())


def show_agreement(model: nn.Sequential, x: Tensor) -> None:
    heading("1. Two backends, one model")
    with torch.no_grad():
        size = float(model(x).abs().max())
    say(
        f"Before training, on {len(x)} points. The largest output is {size:.2f}; in {x.dtype} the backends differ by "
        "rounding where steps are fixed, and by their tolerance, 1e-5, where they are not:"
    )
    rows = [(method, f"{largest_difference(model, x, method):.1e}") for method in ("euler", "rk4", "dopri5")]
    table("lr", ("method", "largest difference"), rows)


# -- training ---------------------------------------------------------------------------------------------------------


def train(model: nn.Sequential, data: Points, iterations: int) -> list[float]:
    """Minimise the cross entropy on all points at once; the losses on the way."""
    x, label = data
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=iterations)
    losses = []
    for _ in range(iterations):
        loss = F.cross_entropy(model(x), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return losses


def accuracy(output: Tensor, label: Tensor) -> float:
    return float((output.argmax(dim=1) == label).double().mean())


def show_training(models: dict[Backend, nn.Sequential], known: Points, held_out: Points, iterations: int) -> None:
    heading("2. Training")
    count = sum(parameter.numel() for parameter in models["solvers"].parameters())
    say(
        f"{count} parameters, {len(known[0])} points, {iterations} iterations, from the same weights, by {STEPS} Euler "
        f"steps in each flow. The accuracy is that on {len(held_out[0])} points held out:"
    )
    rows = []
    for backend, model in models.items():
        start = time.perf_counter()
        losses = train(model, known, iterations)
        seconds = time.perf_counter() - start
        with torch.no_grad():
            reached = accuracy(model(held_out[0]), held_out[1])
        rows.append((backend, f"{losses[0]:.4f}", f"{losses[-1]:.4f}", f"{reached:.3f}", f"{seconds:.1f}"))
    table("lrrrr", ("backend", "first loss", "last loss", "accuracy", "seconds"), rows)


# -- other solvers ----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Passage:
    """A way through the model.

    Attributes:
        energies: Of the hidden states along each flow, `[T, S]`.
        evaluations: Of the fields, by the point that needs most in each flow.
        output: Of the model.
    """

    energies: list[Tensor]
    evaluations: int
    output: Tensor

    @property
    def largest_rise(self) -> float:
        """Of the energy, over all steps, points and flows."""
        return max(float(energy.diff(dim=0).max()) for energy in self.energies)


@torch.no_grad()
def follow(model: nn.Sequential, x: Tensor, saveat: Tensor | str = "steps") -> Passage:
    """Pass points through the model, and look at its flows after every step or at the times given."""
    energies, evaluations = [], 0
    for layer in model:
        if isinstance(layer, Flow):
            solution = layer.solve(x, saveat=saveat)
            energies.append(solution.energy)
            evaluations += int(solution.stats["nfe"].max())
            x = solution.y1
        else:
            x = layer(x)
    return Passage(energies, evaluations, x)


def show_swaps(model: nn.Sequential, held_out: Points) -> None:
    heading("3. Other solvers in the trained model")
    say(
        "Trained by Euler, evaluated by others. The shift is that of the probabilities from those of the model as "
        "trained, the mean over all points; the rise is the largest of the energy in any step of either flow. "
        "Dissipative methods have none beyond rounding:"
    )
    x, label = held_out
    trained = follow(model, x).output.softmax(dim=1)
    rows = []
    for method in SWAPPED:
        passage = follow(with_flows(model, method), x)
        probabilities = passage.output.softmax(dim=1)
        shift = float((probabilities - trained).abs().mean())
        changed = int((probabilities.argmax(dim=1) != trained.argmax(dim=1)).sum())
        kind = "yes" if methods()[method].dissipative else "no"
        figures = f"{accuracy(probabilities, label):.3f}", f"{changed}", f"{shift:.1e}", f"{passage.largest_rise:.1e}"
        rows.append((method, kind, f"{passage.evaluations}", *figures))
    header = ("method", "dissipative", "evaluations", "accuracy", "decisions changed", "shift", "rise")
    table("llrrrrr", header, rows)


# -- the figure -------------------------------------------------------------------------------------------------------

CLASS_COLORS = ("#d55e00", "#0072b2")  # distinct without red and green, and in their shapes as well
CLASS_MARKERS = ("o", "^")
CLASS_LINES = ("-", "--")


def draw(model: nn.Sequential, data: Points, path: Path) -> Path:
    """What the model decides where, and the energies of the hidden states along its flows."""
    import matplotlib.pyplot as plt

    from examples.solvers_figures import STYLE, save

    with plt.rc_context({**STYLE, "font.size": 11, "axes.titlesize": 12}):
        figure, (plane, first, second) = plt.subplots(1, 3, figsize=(14, 5), width_ratios=(1.15, 1, 1))
        figure.subplots_adjust(left=0.045, right=0.985, top=0.92, bottom=0.12, wspace=0.2)
        draw_decisions(plane, model, data)
        times = torch.linspace(0, TIME, 4 * STEPS + 1)  # a dissipative method steps onto them
        passage = follow(with_flows(model, "armijo_euler"), data[0], times)
        titles = "Energy along the first flow", "Energy along the second flow"
        for axes, energy, title in zip((first, second), passage.energies, titles, strict=True):
            draw_energies(axes, times, energy, data[1])
            axes.set(title=title, xlabel="time", ylabel="energy of the hidden state", ylim=(0, None))
        first.legend(loc="lower left")
        return save(figure, path)


@torch.no_grad()
def draw_decisions(axes: Any, model: nn.Sequential, data: Points) -> None:
    ticks = torch.linspace(-2.4, 2.4, 161)
    grid = torch.cartesian_prod(ticks, ticks)
    second = model(grid).softmax(dim=1)[:, 1].reshape(len(ticks), len(ticks)).T
    axes.contourf(ticks, ticks, second, levels=[0, 0.5, 1], colors=CLASS_COLORS, alpha=0.22)
    axes.contour(ticks, ticks, second, levels=[0.5], colors="black", linewidths=1.2)
    x, label = data
    for kind, (color, marker) in enumerate(zip(CLASS_COLORS, CLASS_MARKERS, strict=True)):
        points = x[label == kind][:200]
        axes.plot(*points.T, marker, color=color, markersize=4, markeredgecolor="white", markeredgewidth=0.4)
    axes.set(aspect="equal", xlabel="$x_1$", ylabel="$x_2$", title="Decisions, and points held out")


def draw_energies(axes: Any, times: Tensor, energy: Tensor, label: Tensor) -> None:
    """The energies of some points of each class."""
    for kind, (color, line) in enumerate(zip(CLASS_COLORS, CLASS_LINES, strict=True)):
        axes.plot(times, energy[:, label == kind][:, :40], color=color, ls=line, lw=0.9, alpha=0.7)
        axes.plot([], [], color=color, ls=line, label=f"40 points of class {kind}")
    axes.grid(alpha=0.25)


if __name__ == "__main__":
    main()
