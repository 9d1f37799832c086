"""Pictures of energies and fields. Needs matplotlib: `pip install "lyapflow[plot]"`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError('plots need matplotlib: pip install "lyapflow[plot]"') from error

if TYPE_CHECKING:
    from .certificate import Certificate

STYLE: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "legend.frameon": False,
}
# Told apart with any kind of colour vision, and in print.
PARTS = {"descent": "#1a7f37", "tangential": "#0969da", "combined": "#e16f24"}
LINES = ("#0969da", "#e16f24", "#1a7f37", "#8250df", "#bf8700", "#57606a", "#d1242f", "#0a7c86")
_GRID = 161
SYSTEMS_SHOWN = 64


def draw_certificate(certificate: Certificate, path: Path | None) -> Figure:
    """The energy over time and, for states in the plane, the landscape; see :meth:`Certificate.plot`."""
    plane = certificate.plane
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(12 if plane else 6.5, 5.4), layout="constrained")
        if plane is None:
            draw_energy(figure.subplots(), certificate)
        else:
            left, right = figure.subplots(1, 2, width_ratios=(1, 1.2))
            draw_landscape(left, plane.field, plane.states)
            draw_energy(right, certificate)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=100)
    return figure


def draw_energy(axes: Axes, certificate: Certificate) -> None:
    """The energy of every system over time; steps in which it rose are marked."""
    energy, times = certificate.energy.double().cpu(), certificate.times.cpu()
    shown = min(energy.shape[1], SYSTEMS_SHOWN)
    rising = 0
    for s in range(shown):
        values = energy[:, s]
        axes.plot(times[:, s], values, color=LINES[s % len(LINES)], lw=1.2, alpha=0.9 if shown <= 8 else 0.5)
        if bool(certificate.risen[s]):
            rises = (values.diff() > 0).nonzero().flatten() + 1
            axes.plot(times[rises, s], values[rises], "x", color="#d1242f", markersize=5, zorder=4)
            rising += 1
    finite = energy[torch.isfinite(energy)]
    if len(finite) and float(finite.min()) > 0 and float(finite.max() / finite.min()) > 30:
        axes.set_yscale("log")
    step = "" if certificate.step_size is None else f", step {certificate.step_size:.3g}"
    some = "" if shown == energy.shape[1] else f", {shown} of {energy.shape[1]} systems"
    axes.set(xlabel="time", ylabel="energy V", title=f"Energy over time: {certificate.method}{step}{some}")
    axes.grid(alpha=0.25)
    if rising:
        axes.plot([], [], "x", color="#d1242f", label="the energy rises")
        axes.legend(loc="best")


def draw_landscape(axes: Axes, field: Any, states: Tensor, t: float = 0.0) -> None:
    """The level sets of the energy, the ways of states `[T, S, 2]` over them, and the field's parts at some points.

    At each point the descent part, the tangential part and their sum are drawn at one scale. For a field that does
    not show its parts there is only the sum.
    """
    states = states.detach()
    low, high = _frame(states)
    x, y, energy = _grid_of_energies(field, low, high, states, t)
    levels = _levels(energy)
    shades = mpl.colormaps["Greys"]([0.05 + 0.3 * i / len(levels) for i in range(len(levels) + 1)])
    axes.contourf(x, y, energy, levels=[-float("inf"), *levels, float("inf")], colors=list(shades))
    axes.contour(x, y, energy, levels=levels, colors="#57606a", linewidths=0.5, alpha=0.6)
    for way in states.unbind(1)[:SYSTEMS_SHOWN]:
        axes.plot(*way.cpu().T, color=PARTS["combined"], lw=0.9, alpha=0.6, zorder=2)
    starts: dict[str, Any] = {"color": "white", "markeredgecolor": "black", "markersize": 5, "linestyle": "none"}
    axes.plot(*states[0, :SYSTEMS_SHOWN].cpu().T, "o", zorder=3, label="start", **starts)
    _draw_parts(axes, field, low, high, states, t)
    axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="$h_1$", ylabel="$h_2$")
    axes.set(title="Energy, and the parts of the field", aspect="equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=4)


def _frame(states: Tensor) -> tuple[list[float], list[float]]:
    """A square around the ways, with a margin; far excursions of a diverging way are left out."""
    points = states.reshape(-1, 2).double().cpu()
    points = points[torch.isfinite(points).all(1)]
    start = states[0].double().cpu()
    reach = 3 * max(float((start - start.mean(0)).abs().max()), float(start.abs().max()), 1e-12)
    points = points[((points - start.mean(0)).abs() <= reach).all(1)]
    low, high = points.amin(0), points.amax(0)
    middle, half = (low + high) / 2, float((high - low).max()) / 2
    half = 1.15 * half if half > 0 else max(1.0, float(middle.abs().max()))
    return (middle - half).tolist(), (middle + half).tolist()


def _grid_of_energies(
    field: Any, low: list[float], high: list[float], like: Tensor, t: float
) -> tuple[Tensor, Tensor, Tensor]:
    x, y = (torch.linspace(low[i], high[i], _GRID, dtype=like.dtype, device=like.device) for i in (0, 1))
    with torch.no_grad():
        energy = field.energy(torch.tensor(t, dtype=like.dtype, device=like.device), torch.cartesian_prod(x, y))
    return x.cpu(), y.cpu(), energy.reshape(_GRID, _GRID).T.cpu()


def _levels(energy: Tensor) -> list[float]:
    """Level sets that share out the area: the energy is as likely between any two as between any others."""
    values = energy[torch.isfinite(energy)].double()
    levels = torch.quantile(values, torch.linspace(0.03, 0.97, 14, dtype=torch.float64)).unique().tolist()
    return levels if len(levels) > 1 else [levels[0] - 1, levels[0] + 1]


def _draw_parts(axes: Axes, field: Any, low: list[float], high: list[float], like: Tensor, t: float) -> None:
    ticks = torch.tensor([0.18, 0.5, 0.82], dtype=like.dtype, device=like.device)
    unit = torch.cartesian_prod(ticks, ticks)[[0, 2, 4, 6, 8, 1, 7]]
    side = torch.tensor([b - a for a, b in zip(low, high, strict=True)]).to(like)
    points = torch.tensor(low).to(like) + unit * side
    time = torch.tensor(t, dtype=like.dtype, device=like.device)
    with torch.no_grad():
        if hasattr(field, "parts"):
            parts = field.parts(time, points)
            arrows = {
                "descent": -parts.alpha[:, None] * parts.descent,
                "tangential": parts.beta[:, None] * parts.tangent,
                "combined": parts.velocity,
            }
        else:
            arrows = {"combined": field(time, points)}
    longest = torch.stack([arrow.norm(dim=1) for arrow in arrows.values()]).amax(0)
    scale = 0.13 * float(side[0]) / torch.where(longest > 0, longest, 1.0)
    placed: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.007, "zorder": 5}
    for name, arrow in arrows.items():
        axes.quiver(*points.cpu().T, *(scale[:, None] * arrow).cpu().T, color=PARTS[name], **placed)
        axes.plot([], [], color=PARTS[name], lw=3, label=name)
    axes.plot(*points.cpu().T, "o", color="black", markersize=3, zorder=6)
