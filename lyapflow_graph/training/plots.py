"""Pictures of a run: its losses and metric, and the energy along its flow, over the epochs."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lyapflow.plots import LINES, STYLE

from .history import ENERGY_COLUMNS, History


def draw_run(history: History, folder: Path) -> None:
    """Write `training.png` and, for a model with an energy, `energy.png`."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        losses, metric = figure.subplots(1, 2)
        _draw(losses, history, ("train_loss", "val_loss"), "Loss")
        _draw(metric, history, (f"val_{history.metric}",), "Validation metric")
        metric.axvline(history.best_epoch, color="#8c959f", lw=1, ls=":", label=f"best: epoch {history.best_epoch}")
        metric.legend(loc="best")
        figure.savefig(folder / "training.png", dpi=100)
        if ENERGY_COLUMNS[0] in history.columns:
            figure = Figure(figsize=(14, 3.8), layout="constrained")
            energy, rising, weight = figure.subplots(1, 3)
            _draw(energy, history, ("energy_first", "energy_last"), "Energy where the flow starts and ends")
            _draw(rising, history, ("rising", "shortened", "train_violations"), "Rising and shortened steps, as shares")
            rising.set_ylim(-0.02, 1.02)
            _draw(weight, history, ("descent_weight",), "Weight of the descent objective")
            figure.savefig(folder / "energy.png", dpi=100)


def _draw(axes: Axes, history: History, columns: tuple[str, ...], title: str) -> None:
    values = []
    for name, colour in zip(columns, LINES, strict=False):
        pairs = zip(history.column("epoch"), history.column(name), strict=True)
        known = [(epoch, value) for epoch, value in pairs if not math.isnan(value)]
        values += [value for _, value in known]
        marker = "o" if len(known) == 1 else None
        axes.plot(*zip(*known, strict=True), color=colour, lw=1.4, marker=marker, label=name.replace("_", " "))
    if min(values) > 0 and max(values) > 30 * min(values):
        axes.set_yscale("log")
    axes.set(xlabel="epoch", title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    axes.legend(loc="best")
