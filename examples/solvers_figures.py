"""The figures of the demo. This is its only part that needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from PIL import Image
from torch import Tensor

from lyapflow import plots

LIMIT = 6.0  # of both coordinates
ARROWS_AT = torch.tensor([[-5.0, 0.5], [0.5, -1.5], [1.0, 3.2], [5.0, -0.5], [-1.0, -5.0]], dtype=torch.float64)
STYLE = {**plots.STYLE, "savefig.dpi": 100}
METHOD_STYLES: dict[str, dict[str, Any]] = {
    "euler": {"color": "#d1242f", "marker": "x", "markersize": 5, "linestyle": "--"},
    "rk4": {"color": "#8250df", "marker": "+", "markersize": 6, "linestyle": "--"},
    "armijo_euler": {"color": "#57606a", "marker": ".", "markersize": 4},
    "relaxed_rk4": {"color": "#0969da", "marker": "o", "markersize": 3},
    "discrete_gradient": {"color": "#1a7f37", "marker": "s", "markersize": 3},
    "dopri5": {"color": "#bf8700", "marker": "^", "markersize": 3, "linestyle": ":"},
}
PART_COLORS = {"descent": "#1a7f37", "tangential": "#0969da", "combined": "#e16f24"}


class Field(Protocol):
    """A field in the plane with an energy, and its two parts."""

    def __call__(self, t: Tensor, y: Tensor) -> Tensor: ...

    def energy(self, t: Tensor, y: Tensor) -> Tensor: ...

    def descent(self, y: Tensor) -> Tensor: ...

    def swirl(self, y: Tensor) -> Tensor: ...


class Descent(Protocol):
    """The paths that a method took."""

    @property
    def method(self) -> str: ...

    def path(self, system: int) -> tuple[Tensor, Tensor, Tensor]: ...


def draw_descents(descents: Sequence[Descent], field: Field, starts: Tensor, shown: int, path: Path) -> Path:
    """The paths from all starts over the level sets, and over time the energy from the start that is shown."""
    with plt.rc_context(STYLE):
        figure, (plane, graph) = two_panels()
        draw_level_sets(plane, field)
        for descent in descents:
            if descent.method in ("euler", "relaxed_rk4", "discrete_gradient"):
                style = METHOD_STYLES[descent.method]
                for system in range(len(starts)):
                    plane.plot(*until_outside(descent.path(system)[1]).T, lw=1.2, **style)
                plane.plot([], [], label=descent.method, **style)
        draw_starts(plane, starts, shown)
        plane.set_title("Euler leaves, dissipative methods go down")
        legend_below(plane, columns=2)
        draw_energies(graph, descents, shown)
        return save(figure, path)


def draw_steps(stiffness: Tensor, own: Tensor, shared: int, path: Path) -> Path:
    """The steps of every system over its stiffness, with a step size of its own and with one for all."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
        axes.axhline(shared, color="#d1242f", lw=2)
        axes.loglog(stiffness, own, "o", color="#0969da", markersize=5)
        place: dict[str, Any] = {"textcoords": "offset points", "va": "center"}
        axes.annotate("Single(): one step size for all", (1, shared), (0, 12), color="#d1242f", **place)
        axes.annotate("Rows(): each system its own", (1, float(own[0])), (0, 20), color="#0969da", **place)
        axes.set(xlabel="peak rate of the system", ylabel="accepted steps", title="The steps that each system takes")
        axes.set_ylim(float(own.min()) / 1.5, shared * 1.7)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(ScalarFormatter())
        axes.grid(alpha=0.25, which="both")
        return save(figure, path)


def draw_readme_image(descents: Sequence[Descent], field: Field, flow: Tensor, shown: int, path: Path) -> Path:
    """The parts of a field with flow lines, `[T, S, 2]`, and the energy over time at a step that is too large."""
    with plt.rc_context({**STYLE, "font.size": 12, "axes.titlesize": 13}):
        figure, (plane, graph) = two_panels()
        draw_level_sets(plane, field)
        for line in flow.unbind(1):
            plane.plot(*line.T, color=PART_COLORS["combined"], lw=0.9, alpha=0.6)
        draw_parts(plane, field)
        draw_starts(plane, descents[0].path(shown)[1][:1], 0)
        plane.set_title("The energy falls along the flow")
        legend_below(plane, columns=2)
        draw_energies(graph, descents, shown)
        return save(figure, path)


def two_panels() -> tuple[Figure, tuple[Axes, Axes]]:
    """A square one and a wider one, with room for their legends below."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.9), width_ratios=(1, 1.2))
    figure.subplots_adjust(left=0.05, right=0.985, top=0.94, bottom=0.19, wspace=0.17)
    return figure, (left, right)


def legend_below(axes: Axes, columns: int) -> None:
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=columns, columnspacing=1.4, handletextpad=0.6)


def draw_starts(axes: Axes, starts: Tensor, shown: int) -> None:
    axes.plot(*starts.T, "o", color="black", markersize=5, zorder=6)
    star: dict[str, Any] = {"marker": "*", "markersize": 15, "color": "black", "markeredgecolor": "white"}
    axes.plot(*starts[shown], zorder=7, linestyle="none", label="start of the right panel", **star)


def draw_level_sets(axes: Axes, field: Field) -> None:
    ticks = torch.linspace(-LIMIT, LIMIT, 301, dtype=torch.float64)
    grid = torch.cartesian_prod(ticks, ticks)
    energy = field.energy(torch.zeros(()), grid).reshape(301, 301).T
    levels = torch.logspace(-1.5, 1.5, 13).tolist()
    shades = plt.get_cmap("Greys")([0.27 * i / len(levels) for i in range(len(levels) + 1)])
    axes.contourf(ticks, ticks, energy, levels=[0, *levels, 1e3], colors=list(shades))
    axes.contour(ticks, ticks, energy, levels=levels, colors="#57606a", linewidths=0.5, alpha=0.6)
    axes.set(xlim=(-LIMIT, LIMIT), ylim=(-LIMIT, LIMIT), aspect="equal", xlabel="$y_1$", ylabel="$y_2$")


def draw_parts(axes: Axes, field: Field) -> None:
    """The descent, the tangential part and their sum at some points, all three at one scale for each point."""
    points = ARROWS_AT
    scale = 1.8 / field(torch.zeros(()), points).norm(dim=1, keepdim=True)
    parts = {"descent": field.descent(points), "tangential": field.swirl(points)}
    parts["combined"] = parts["descent"] + parts["tangential"]
    for name, part in parts.items():
        xy: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.008, "zorder": 5}
        axes.quiver(*points.T, *(scale * part).T, color=PART_COLORS[name], **xy)
        label = "combined, with its flow" if name == "combined" else name
        axes.plot([], [], color=PART_COLORS[name], lw=3, label=label)
    axes.plot(*points.T, "o", color="black", markersize=4, zorder=6)


def draw_energies(axes: Axes, descents: Sequence[Descent], system: int) -> None:
    for descent in descents:
        ts, _, energy = descent.path(system)
        axes.semilogy(ts, energy.clamp(max=1e30), lw=1.5, label=descent.method, **METHOD_STYLES[descent.method])
    axes.set(
        xlabel="time", ylabel="energy V", ylim=(1e-9, 1e6), title="Energy over time, at a step too large for Euler"
    )
    axes.grid(alpha=0.25)
    legend_below(axes, columns=3)


def until_outside(ys: Tensor) -> Tensor:
    """A path up to its first point outside of the picture: what follows may be too far away to draw."""
    outside = (ys.abs() > LIMIT).any(dim=1).nonzero()
    return ys if len(outside) == 0 else ys[: int(outside[0]) + 1]


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
    # A palette makes the file a third as large and looks the same.
    Image.open(path).convert("RGB").quantize(255).save(path, optimize=True)
    return path
