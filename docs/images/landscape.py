"""Draws the picture of the start page, for light and dark pages: `python docs/images/landscape.py`.

Level sets of a double well, and from one start the three ways a Lyapunov field can go: down the energy, along its level
set, and both at once. All ways are computed by the library itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from lyapflow import DoubleWell, LyapunovField, Tangent
from solvers import PID, solve

ENERGY = DoubleWell(barrier=1.0, width=1.5)
ALPHA = 0.4  # beside a beta of 1
WIDTH, HEIGHT = 2.75, 1.4
START = torch.tensor([[2.0, 0.42]], dtype=torch.float64)
ARROWS = [[-2.28, 0.3], [-1.45, 1.05], [-1.2, -0.92], [-0.5, 0.3], [0.1, -0.95], [0.25, 0.95]]
THEMES = {
    "light": {"ink": "#1f2328", "line": "#8c959f", "shade": "#5b6b7d", "descent": "#1a7f37", "tangential": "#0969da",
              "combined": "#d9631a"},
    "dark": {"ink": "#e6edf3", "line": "#7d8590", "shade": "#9fb3c8", "descent": "#3fb950", "tangential": "#58a6ff",
             "combined": "#f0883e"},
}  # fmt: skip


class QuarterTurn(Tangent):
    """The gradient turned by a right angle."""

    takes = ("gradient",)

    def forward(self, h: Tensor, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.stack([-gradient[:, 1], gradient[:, 0]], dim=1)


def way(alpha: float, beta: float, time: float) -> Tensor:
    field = LyapunovField(ENERGY, QuarterTurn(), alpha=alpha, beta=beta)
    times = torch.linspace(0, time, 240).tolist()
    controller = PID(rtol=1e-8, atol=1e-10)
    return solve(field, START, 0.0, time, method="dopri5", controller=controller, saveat=times).ys[:, 0]


def draw_levels(axes: Axes, colours: dict[str, str]) -> None:
    x, y = torch.linspace(-WIDTH, WIDTH, 200), torch.linspace(-HEIGHT, HEIGHT, 100)
    energy = ENERGY(torch.cartesian_prod(x, y)).reshape(len(x), len(y)).T
    levels = [0.03, 0.1, 0.22, 0.4, 0.65, 0.95, 1.35, 1.9, 2.7, 3.9, 5.6]
    for i, level in enumerate(levels):  # one sheet upon the other, so that it is darker the higher it lies
        axes.contourf(x, y, energy, levels=[level, 1e9], colors=[colours["shade"]], alpha=0.035 + 0.004 * i)
    axes.contour(x, y, energy, levels=levels, colors=colours["line"], linewidths=0.6, alpha=0.75)


def draw_arrows(axes: Axes, points: Tensor, colours: dict[str, str], length: float) -> None:
    parts = LyapunovField(ENERGY, QuarterTurn(), alpha=ALPHA, beta=1.0).parts(0.0, points)
    arrows = {"descent": -ALPHA * parts.gradient, "tangential": parts.tangent, "combined": parts.velocity}
    scale = length / parts.velocity.norm(dim=1, keepdim=True)
    placed: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.0038, "zorder": 5}
    for name, arrow in arrows.items():
        axes.quiver(*points.T, *(scale * arrow).T, color=colours[name], **placed)
    axes.plot(*points.T, "o", color=colours["ink"], markersize=3.5, zorder=6)


def draw(colours: dict[str, str]) -> Figure:
    figure = Figure(figsize=(9.3, 4.73))
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-WIDTH, WIDTH), ylim=(-HEIGHT, HEIGHT), aspect="equal")
    axes.axis("off")
    draw_levels(axes, colours)
    ways = {"descent": way(ALPHA, 0.0, 12.0), "tangential": way(0.0, 1.0, 6.0), "combined": way(ALPHA, 1.0, 12.0)}
    for name, states in ways.items():
        axes.plot(*states.T, color=colours[name], lw=2.0, zorder=4, solid_capstyle="round")
    draw_arrows(axes, START, colours, 0.55)
    draw_arrows(axes, torch.tensor(ARROWS, dtype=torch.float64), colours, 0.42)
    axes.plot(*START.T, "o", color="white", markeredgecolor=colours["ink"], markersize=7, zorder=7)
    return figure


def main() -> None:
    folder = Path(__file__).parent
    with mpl.rc_context({"svg.hashsalt": "lyapflow"}):  # the same file every time
        for theme, colours in THEMES.items():
            path = folder / f"landscape-{theme}.svg"
            draw(colours).savefig(path, metadata={"Date": None})
            print(path.name)


if __name__ == "__main__":
    main()
