"""The figures of `examples.demo`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lyapflow import Certificate
from lyapflow.plots import LINES, STYLE, draw_energy

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
    """What every model predicts over what is true, by the name of the model: labels, and values."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.6), layout="constrained")
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


def draw_energies(certificates: Sequence[Certificate], path: Path) -> Path:
    """The energy over time of every certificate."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        for axes, certificate in zip(
            figure.subplots(1, len(certificates), sharey=True, squeeze=False)[0], certificates, strict=True
        ):
            draw_energy(axes, certificate)
        return _saved(figure, path)


def _saved(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    return path
