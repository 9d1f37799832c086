"""Pictures of graphs and of what the diagnostics say. Needs matplotlib: `pip install "lyapflow[plot]"`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import LineCollection
    from matplotlib.colors import Normalize
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError('plots need matplotlib: pip install "lyapflow[plot]"') from error

from lyapflow.plots import LINES, SYSTEMS_SHOWN

from .batch import GraphBatch

_RISE = "#d1242f"
_EDGE = "#8c959f"
_MARKERS = "osD^vP*X"


def draw_energy(axes: Axes, energy: Tensor, labels: Sequence[str] | None = None) -> None:
    """Energies over steps, `[steps + 1, S]`; steps in which one rose by more than rounding are marked.

    Args:
        axes: To draw on.
        energy: As :func:`energy_per_step` gives it, or `[steps + 1]`. At most 64 graphs are drawn.
        labels: A name for each graph.

    >>> import torch
    >>> from matplotlib.figure import Figure
    >>> from lyapflow_graph.plots import draw_energy
    >>> axes = Figure().subplots()
    >>> draw_energy(axes, torch.tensor([[3.0], [2.0], [2.5]]))
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['the energy rises']
    """
    values = energy.detach().double().cpu()
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2:
        raise ValueError(f"energy must have shape [steps + 1, S], got {list(energy.shape)}")
    _check_labels(labels, values.shape[1], "graphs")
    rounding = 8 * torch.finfo(energy.dtype).eps * values.abs().amax(0)
    rises = values.diff(dim=0) > rounding
    shown = min(values.shape[1], SYSTEMS_SHOWN)
    for s in range(shown):
        name = None if labels is None else labels[s]
        axes.plot(values[:, s], color=LINES[s % len(LINES)], lw=1.4, alpha=0.9 if shown <= 8 else 0.5, label=name)
        steps = rises[:, s].nonzero().flatten() + 1
        if len(steps):
            axes.plot(steps, values[steps, s], "x", color=_RISE, markersize=6, zorder=4)
    if bool(rises[:, :shown].any()):
        axes.plot([], [], "x", color=_RISE, label="the energy rises")
    finite = values[torch.isfinite(values)]
    if len(finite) and float(finite.min()) > 0 and float(finite.max() / finite.min()) > 30:
        axes.set_yscale("log")
    some = "" if shown == values.shape[1] else f", {shown} of {values.shape[1]} graphs"
    axes.set(xlabel="step", ylabel="energy V", title=f"Energy over steps{some}")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")


def draw_influence(axes: Axes, mean: Tensor, labels: Sequence[str] | None = None, relative: bool = False) -> None:
    """Mean influence over distance, on a logarithmic scale; a distance without pairs is left out.

    Influence of exactly 0 has no place on this scale: it is marked by a triangle at the lower end.

    Args:
        axes: To draw on.
        mean: `[S, D + 1]`, as :func:`influence_over_distance` gives it, or `[D + 1]`.
        labels: A name for each row.
        relative: Whether the values are relative to those at distance 0.

    >>> import torch
    >>> from matplotlib.figure import Figure
    >>> from lyapflow_graph.plots import draw_influence
    >>> axes = Figure().subplots()
    >>> draw_influence(axes, torch.tensor([[1.0, 0.1, 0.01]]))
    >>> axes.get_yscale(), axes.get_xlabel()
    ('log', 'distance from source to target (edges)')
    """
    values = mean.detach().double().cpu()
    values = values[None] if values.ndim == 1 else values
    if values.ndim != 2:
        raise ValueError(f"mean must have shape [S, D + 1], got {list(mean.shape)}")
    _check_labels(labels, values.shape[0], "rows")
    positive = values[torch.isfinite(values) & (values > 0)]
    low = float(positive.min()) / 3 if len(positive) else 0.1
    for s, row in enumerate(values[:SYSTEMS_SHOWN]):
        color, marker = LINES[s % len(LINES)], _MARKERS[s % len(_MARKERS)]
        name = None if labels is None else labels[s]
        there = (row > 0).nonzero().flatten()
        axes.plot(there, row[there], marker=marker, markersize=4.5, color=color, lw=1.4, label=name)
        nothing = (row == 0).nonzero().flatten()
        if len(nothing):
            axes.plot(nothing, torch.full((len(nothing),), low), "v", color=color, fillstyle="none", linestyle="none")
    if bool((values[:SYSTEMS_SHOWN] == 0).any()):
        axes.plot([], [], "v", color=_EDGE, fillstyle="none", label="exactly 0")
    axes.set_yscale("log")
    what = "influence / influence at distance 0" if relative else r"influence $\|\partial f_i / \partial x_j\|$"
    axes.set(xlabel="distance from source to target (edges)", ylabel=what, title="Influence over distance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")


def draw_graph(
    axes: Axes,
    edge_index: Tensor | GraphBatch,
    values: Tensor,
    positions: Tensor | None = None,
    *,
    limits: tuple[float, float] | None = None,
    label: str = "feature",
    colorbar: bool = True,
    size: float = 120.0,
    seed: int = 0,
) -> ScalarMappable:
    """A graph with a value at every node as its colour; what the colour bar is made from is returned.

    An edge that is stored both ways is a line, one that is stored one way an arrow; loops are left out, and a node
    without edges has a dashed rim.

    Args:
        axes: To draw on.
        edge_index: `[2, E]`, or a :class:`GraphBatch`.
        values: `[n]` or `[n, 1]`.
        positions: `[n, 2]`, by default a spring layout by networkx.
        limits: Of the colours, by default the smallest and the largest value.
        label: Of the colour bar.
        colorbar: Whether there is one.
        size: Of a node, in points squared.
        seed: Of the layout.

    >>> import torch
    >>> from matplotlib.figure import Figure
    >>> from lyapflow_graph.plots import draw_graph
    >>> axes = Figure().subplots()
    >>> shown = draw_graph(axes, torch.tensor([[0, 1, 1], [1, 0, 2]]), torch.tensor([0.0, 0.5, 2.0]))
    >>> shown.get_clim()
    (0.0, 2.0)
    """
    height = values.detach().double().cpu().flatten()
    if values.ndim > 2 or (values.ndim == 2 and values.shape[1] != 1):
        raise ValueError(f"values must be one for each node, [n] or [n, 1], got {list(values.shape)}")
    graphs = edge_index if isinstance(edge_index, GraphBatch) else GraphBatch(edge_index, len(height))
    if graphs.num_nodes != len(height):
        raise ValueError(f"values has {len(height)} entries, but the graphs have {graphs.num_nodes} nodes")
    edges = graphs.edge_index.cpu()
    places = _spring_layout(edges, len(height), seed) if positions is None else positions.detach().double().cpu()
    if places.shape != (len(height), 2):
        raise ValueError(f"positions must have shape [{len(height)}, 2], got {list(places.shape)}")
    _draw_edges(axes, edges, places, size)
    low, high = limits or ((float(height.min()), float(height.max())) if len(height) else (0.0, 1.0))
    colors = ScalarMappable(Normalize(low, high if high > low else low + 1), mpl.colormaps["viridis"])
    touched = torch.zeros(len(height), dtype=torch.bool)
    touched[edges[:, edges[0] != edges[1]].flatten()] = True
    for chosen, style in ((touched, "solid"), (~touched, "dashed")):
        if bool(chosen.any()):
            face = colors.to_rgba(height[chosen].numpy())
            rim: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.8, "linestyle": style}
            axes.scatter(places[chosen, 0], places[chosen, 1], s=size, c=face, zorder=3, **rim)
    axes.set(aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.margins(0.08)
    if colorbar:
        axes.figure.colorbar(colors, ax=axes, label=label, shrink=0.8)
    return colors


def _draw_edges(axes: Axes, edges: Tensor, places: Tensor, size: float) -> None:
    there = {(int(a), int(b)) for a, b in edges.T.tolist() if a != b}
    both = [places[[a, b]].numpy() for a, b in sorted(there) if a < b and (b, a) in there]
    axes.add_collection(LineCollection(both, colors=_EDGE, linewidths=0.8, alpha=0.7, zorder=1))
    gap = (size / 3.14) ** 0.5 + 1  # from the middle of a node to its rim, in points
    for a, b in sorted(there):
        if (b, a) not in there:
            arrow: dict[str, Any] = {"arrowstyle": "-|>", "color": _EDGE, "lw": 0.9, "shrinkA": gap, "shrinkB": gap}
            axes.annotate("", tuple(places[b].tolist()), tuple(places[a].tolist()), arrowprops=arrow, zorder=2)


def _spring_layout(edges: Tensor, num_nodes: int, seed: int) -> Tensor:
    import networkx as nx  # torch comes with it

    graph = nx.Graph()
    graph.add_nodes_from(range(num_nodes))
    graph.add_edges_from(edges.T.tolist())
    places = nx.spring_layout(graph, seed=seed)
    return torch.tensor([places[node].tolist() for node in range(num_nodes)], dtype=torch.float64).reshape(-1, 2)


def _check_labels(labels: Sequence[str] | None, count: int, what: str) -> None:
    if labels is not None and len(labels) != count:
        raise ValueError(f"labels must name each of the {count} {what}, got {len(labels)}")
