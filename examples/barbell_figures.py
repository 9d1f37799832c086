"""The picture of the barbell graph before and after the flows of `examples/barbell_flows.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from lyapflow.plots import STYLE
from lyapflow_graph.plots import draw_graph

if TYPE_CHECKING:
    from examples.barbell_flows import BarbellResult


def draw_barbell(result: BarbellResult, path: Path | None = None) -> Figure:
    """The start and both ends, at one scale of colours; see :meth:`BarbellResult.plot`."""
    steps = len(result.tango.energy) - 1
    start, descent, tango = result.tango.states[0], result.gradient_flow.states[-1], result.tango.states[-1]
    mean = float(start.mean())
    limits = (
        min(0.0, float(descent.min()), float(tango.min())),
        max(2 * mean, float(descent.max()), float(tango.max())),
    )
    share = "{:.1%} of the signal is beyond the bridge".format
    panels = (
        ("(a) the start", start, share(0.0)),
        (f"(b) gradient flow, {steps} steps", descent, share(result.gradient_flow.crossed)),
        (f"(c) TANGO, {steps} steps", tango, share(result.tango.crossed)),
    )
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.6, 6.6), layout="constrained")
        rows = figure.subplots(3, 1)
        for axes, (title, state, below) in zip(rows, panels, strict=True):
            shown = draw_graph(axes, result.graphs, state, result.positions, limits=limits, colorbar=False)
            axes.set(title=title, xlabel=below)
        bar = figure.colorbar(shown, ax=list(rows), label="feature", extend="max", shrink=0.7)
        bar.ax.axhline(mean, color="white", lw=1.5)
        bar.ax.annotate("uniform", (0, mean), (-5, 0), textcoords="offset points", ha="right", va="center")
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=100)
    return figure
