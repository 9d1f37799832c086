"""The figures of `examples.demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from lyapflow.plots import LINES, STYLE
from solvers import rises

_BETWEEN = (10, 90)  # percentiles


def draw_curves(curves: Mapping[str, Mapping[str, Sequence[float]]], path: Path) -> Path:
    """The training loss and the validation metric of every model over the epochs."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.8), layout="constrained")
        titles = {"train_loss": "Training: mean squared error", "val_log10_mse": "Validation: log10 of the same"}
        for axes, (column, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
            for (name, values), colour in zip(curves.items(), LINES, strict=False):
                axes.plot(values["epoch"], values[column], color=colour, lw=1.6, label=name)
            axes.set(xlabel="epoch", title=title)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.25)
            axes.legend(loc="upper right")
        return _saved(figure, path)


def draw_predictions(pairs: Mapping[str, tuple[Sequence[float], Sequence[float]]], path: Path) -> Path:
    """The predictions of every model over the labels; `pairs` are labels and values by the name of the model."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.6 * len(pairs), 4.2), layout="constrained")
        all_axes = figure.subplots(1, len(pairs), sharex=True, sharey=True, squeeze=False)[0]
        for axes, (name, (labels, values)), colour in zip(all_axes, pairs.items(), LINES, strict=False):
            _draw_pairs(axes, np.asarray(labels), np.asarray(values), colour)
            axes.set(title=name, xlabel="eccentricity")
        all_axes[0].set(ylabel="predicted")
        return _saved(figure, path)


def _draw_pairs(axes: Axes, labels: np.ndarray, values: np.ndarray, colour: str) -> None:
    there = np.unique(labels)
    groups = [values[labels == label] for label in there]
    low, high = (np.array([np.percentile(group, share) for group in groups]) for share in _BETWEEN)
    axes.plot(there, there, color="#57606a", lw=1, ls="--", label="exact")
    axes.fill_between(there, low, high, color=colour, alpha=0.2, lw=0, label="middle 80%")
    axes.plot(there, [group.mean() for group in groups], color=colour, lw=1.6, marker="o", markersize=3.5, label="mean")
    axes.grid(alpha=0.25)
    axes.legend(loc="upper left")


def draw_energies(models: Mapping[str, tuple[float, Tensor | None]], path: Path) -> Path:
    """The energy of every graph over the steps, all models on one axis, and the metric beside it.

    Args:
        models: By name: the metric on the test set, and the energies `[steps + 1, graphs]` of a model that has one.
        path: The file to write.
    """
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
        for (name, (_, energy)), colour in zip(models.items(), LINES, strict=False):
            if energy is not None:
                _draw_paths(left, name, energy, colour)
        left.axhline(1.0, color="#57606a", lw=1, ls="--")
        left.set(xlabel="step", ylabel="V / V at the start", title="Energy of every test graph", yscale="log")
        left.xaxis.set_major_locator(MaxNLocator(integer=True))
        left.grid(alpha=0.25)
        left.legend(loc="best")
        metrics = [metric for metric, _ in models.values()]
        bars = right.bar(range(len(models)), metrics, width=0.6, color=LINES[: len(models)])
        right.bar_label(bars, fmt="%.3f", padding=3)
        right.set_xticks(range(len(models)), [name.replace(", ", ",\n") for name in models])
        right.set(title="Test log10 MSE (lower is better)")
        right.margins(y=0.12)
        right.axhline(0.0, color="#57606a", lw=0.8)
        return _saved(figure, path)


def _draw_paths(axes: Axes, name: str, energy: Tensor, colour: str) -> None:
    relative = (energy / energy[0]).double()
    axes.plot(relative, color=colour, lw=0.6, alpha=0.3)
    rising = int(rises(energy).any(0).sum())
    axes.plot(
        relative.median(1).values, color=colour, lw=2.4, marker="o", markersize=4, zorder=3,
        label=f"{name}: rises in {rising} of {energy.shape[1]} graphs",
    )  # fmt: skip


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
