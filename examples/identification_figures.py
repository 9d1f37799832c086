"""The figure of the identification example. This is its only part that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from lyapflow import plots

if TYPE_CHECKING:
    from examples.identification import Showcase

LOWEST_ENERGY = 1e-9  # of the largest, on the axis
ENERGIES = 4  # rollouts of each region whose energy is shown: more would hide each other
STYLE = {**plots.STYLE, "axes.titlesize": 10, "savefig.dpi": 110}
# Colours of Okabe and Ito, which the colour-blind can tell apart.
TRUTH: dict[str, Any] = {"color": "#b4b4b4", "lw": 4.0, "solid_capstyle": "round"}
MODELS: dict[str, dict[str, Any]] = {
    "guaranteed": {"color": "#0072b2", "lw": 1.4},
    "unconstrained": {"color": "#d55e00", "lw": 1.4},
}
REGIONS: dict[str, Any] = {"inside": ":", "outside": "-"}
MARK: dict[str, Any] = {"color": "black", "lw": 1.0, "linestyle": "--"}


def draw(showcases: Sequence[Showcase], path: Path) -> Path:
    """A row for each problem: rollouts in the phase plane, errors over time, energies over time."""
    with plt.rc_context(STYLE):
        figure, grid = plt.subplots(
            len(showcases), 3, figsize=(13, 4.1 * len(showcases) + 0.7), squeeze=False, layout="constrained"
        )
        for showcase, (plane, errors, energies) in zip(showcases, grid, strict=True):
            draw_plane(plane, showcase)
            draw_errors(errors, showcase)
            draw_energies(energies, showcase)
        draw_legend(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        plt.close(figure)
    return path


def draw_plane(axes: Axes, showcase: Showcase) -> None:
    """The truth and both models from the same starts, on the level sets of the learned energy."""
    shown = [0, showcase.inside]  # a start inside and one outside
    limits = plane_limits(showcase.truth[:, shown])
    draw_level_sets(axes, showcase, limits)
    for i in shown:
        axes.plot(*showcase.truth[:, i].T, zorder=2, **TRUTH)
        for kind, rollout in reversed(showcase.rollouts.items()):
            axes.plot(*rollout.states[:, i].T, zorder=3, **MODELS[kind])
    axes.plot(*showcase.truth[0, shown].T, "o", color="black", markersize=5, zorder=4)
    (left, right), (bottom, top) = limits
    name, (first, second) = showcase.problem.name.capitalize(), showcase.problem.axes
    axes.set(xlim=(left, right), ylim=(bottom, top), xlabel=first, ylabel=second, title=f"{name}: long rollouts")


def plane_limits(truth: Tensor) -> list[tuple[float, float]]:
    """The range of each coordinate, and a fifth of it on both sides."""
    low, high = truth.flatten(0, 1).aminmax(dim=0)
    room = (high - low) / 5
    return list(zip((low - room).tolist(), (high + room).tolist(), strict=True))


def draw_level_sets(axes: Axes, showcase: Showcase, limits: Sequence[tuple[float, float]]) -> None:
    x, y = (torch.linspace(*limit, 161, dtype=torch.float64) for limit in limits)
    energy = learned_energy(showcase, torch.cartesian_prod(x, y)).reshape(161, 161).T
    # Equal steps of the root, as the radii of a bowl's level sets.
    levels = (torch.linspace(0, 1, 11) * energy.max().sqrt()).square().tolist()[1:-1]
    axes.contour(x, y, energy, levels=levels, colors="#999999", linewidths=0.6, alpha=0.7, zorder=1)


def draw_errors(axes: Axes, showcase: Showcase) -> None:
    """The median distance from the truth over time, inside and outside."""
    parts = {"inside": slice(None, showcase.inside), "outside": slice(showcase.inside, None)}
    for kind, rollout in showcase.rollouts.items():
        for region, part in parts.items():
            gaps = (rollout.states - showcase.truth)[:, part].norm(dim=-1)
            error = gaps.median(dim=1).values[1:]
            axes.semilogy(showcase.times[1:], error, linestyle=REGIONS[region], **MODELS[kind])
    axes.axvline(showcase.horizon, **MARK)
    axes.set(
        xlabel="time", ylabel="median distance from the truth", title="Error; dashed: length of a training trajectory"
    )
    axes.grid(alpha=0.25)


def draw_energies(axes: Axes, showcase: Showcase) -> None:
    """The learned energy along some rollouts of both models, as a share of the largest."""
    energies = {kind: learned_energy(showcase, rollout.states) for kind, rollout in showcase.rollouts.items()}
    largest = float(energies["guaranteed"].max())
    for kind, energy in reversed(energies.items()):
        for region, first in (("inside", 0), ("outside", showcase.inside)):
            share = (energy[:, first : first + ENERGIES] / largest).clamp(min=LOWEST_ENERGY / 10)
            axes.semilogy(showcase.times, share, **{**MODELS[kind], "lw": 1.0, "linestyle": REGIONS[region]})
    title = "Learned energy"
    if showcase.problem.floor > LOWEST_ENERGY * largest:
        axes.axhline(showcase.problem.floor / largest, **MARK)
        title += "; dashed: the floor"
    axes.set(xlabel="time", ylabel="learned energy / largest", title=title)
    axes.set_ylim(bottom=max(LOWEST_ENERGY, axes.get_ylim()[0]))
    axes.grid(alpha=0.25)


@torch.no_grad()
def learned_energy(showcase: Showcase, states: Tensor) -> Tensor:
    """The energy of the guaranteed model at states `[..., 2]`, `[...]`."""
    field: Any = showcase.fields["guaranteed"]
    return field.energy(0.0, states.reshape(-1, 2)).reshape(states.shape[:-1])


def draw_legend(figure: Figure) -> None:
    handles = [Line2D([], [], label="truth", **TRUTH)]
    handles += [Line2D([], [], label=kind, **{**style, "lw": 2.5}) for kind, style in MODELS.items()]
    handles += [Line2D([], [], marker="o", color="black", linestyle="none", markersize=5, label="start")]
    handles += [Line2D([], [], color="#999999", lw=0.6, label="level set of the learned energy")]
    for region, line in REGIONS.items():
        label = f"started {region} of the training region"
        handles.append(Line2D([], [], color="black", linestyle=line, label=label))
    figure.legend(handles=handles, loc="outside lower center", ncols=4)
