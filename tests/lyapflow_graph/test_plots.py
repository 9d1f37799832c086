"""The pictures show what they say."""

from __future__ import annotations

import math

import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from torch import Tensor

from lyapflow_graph import GraphBatch
from lyapflow_graph.plots import draw_energy, draw_graph, draw_influence

# Both ways between 0 and 1, twice; one way from 1 to 2; a loop at 3, and 4 by itself.
EDGES = torch.tensor([[0, 1, 0, 1, 3], [1, 0, 1, 2, 3]])


@pytest.fixture
def axes() -> Axes:
    return Figure().subplots()


def names(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def crosses(axes: Axes) -> list[tuple[float, float]]:
    marks = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
    return [tuple(map(float, point)) for line in marks for point in line.get_xydata()]


def render(axes: Axes) -> None:
    """Whatever is wrong with an artist comes out when it is drawn."""
    axes.figure.canvas.draw()  # type: ignore[union-attr]


# -- energies ---------------------------------------------------------------------------------------------------------


def test_rising_steps_are_marked_and_no_others(axes: Axes) -> None:
    falls, rises = [4.0, 3.0, 2.0, 1.0], [4.0, 5.0, 2.0, 3.0]
    draw_energy(axes, torch.tensor([falls, rises]).T, ["one", "two"])
    render(axes)
    assert crosses(axes) == [(1, 5), (3, 3)]
    assert names(axes) == ["one", "two", "the energy rises"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "energy V")
    assert [list(line.get_ydata()) for line in axes.lines[:2]] == [falls, rises]
    assert axes.get_yscale() == "linear"


@pytest.mark.parametrize(("roundings", "marks"), [(2, 0), (100, 1)])
def test_rounding_is_no_rise(axes: Axes, roundings: int, marks: int) -> None:
    draw_energy(axes, torch.tensor([1.0, 1.0 + roundings * torch.finfo(torch.float32).eps]))
    assert len(crosses(axes)) == marks
    assert names(axes) == ["the energy rises"] * marks


def test_energies_of_different_sizes_are_on_a_logarithmic_scale(axes: Axes) -> None:
    draw_energy(axes, torch.tensor([1.0, 1e-3]))
    render(axes)
    assert axes.get_yscale() == "log"


def test_many_graphs_are_drawn_in_part(axes: Axes) -> None:
    draw_energy(axes, torch.ones(2, 70))
    assert len(axes.lines) == 64
    assert axes.get_title(loc="left") + axes.get_title() == "Energy over steps, 64 of 70 graphs"


def test_energies_may_be_missing(axes: Axes) -> None:
    draw_energy(axes, torch.tensor([[math.nan, 0.0], [1.0, 0.0]]))
    assert len(axes.lines) == 2
    draw_energy(axes, torch.ones(3, 0))
    assert len(axes.lines) == 2
    render(axes)


# -- influence --------------------------------------------------------------------------------------------------------


def test_influence_leaves_out_what_is_missing_and_marks_zeros(axes: Axes) -> None:
    draw_influence(axes, torch.tensor([[1.0, 0.1, 0.0], [2.0, math.nan, 0.3]]), ["a", "b"])
    render(axes)
    assert axes.get_yscale() == "log"
    assert names(axes) == ["a", "b", "exactly 0"]
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines["a"] == [[0, 1], [1, pytest.approx(0.1)]]
    assert lines["b"] == [[0, 2], [2, pytest.approx(0.3)]]
    (zero,) = [line for line in axes.lines if line.get_marker() == "v" and len(line.get_xdata())]
    assert zero.get_xdata().tolist() == [2]
    assert float(zero.get_ydata()[0]) < 0.1


def test_influence_says_what_it_is_relative_to(axes: Axes) -> None:
    draw_influence(axes, torch.tensor([1.0, 0.5]), relative=True)
    assert axes.get_ylabel() == "influence / influence at distance 0"
    assert names(axes) == []
    draw_influence(axes, torch.tensor([1.0, 0.5]))
    assert axes.get_ylabel() != "influence / influence at distance 0"


def test_influence_of_nothing(axes: Axes) -> None:
    draw_influence(axes, torch.full((1, 3), math.nan))
    assert [len(line.get_xdata()) for line in axes.lines] == [0]
    draw_influence(axes, torch.zeros(1, 3))
    render(axes)
    assert names(axes) == ["exactly 0"]


# -- graphs -----------------------------------------------------------------------------------------------------------


def nodes(axes: Axes) -> list[PathCollection]:
    return [artist for artist in axes.collections if isinstance(artist, PathCollection)]


def lines(axes: Axes) -> int:
    return sum(len(c.get_segments()) for c in axes.collections if isinstance(c, LineCollection))


def arrows(axes: Axes) -> list[Annotation]:
    return [text for text in axes.texts if isinstance(text, Annotation)]


@pytest.mark.parametrize("edges", [EDGES, GraphBatch(EDGES, 5)], ids=["tensor", "graphs"])
def test_a_graph_with_lines_arrows_and_lonely_nodes(axes: Axes, edges: Tensor | GraphBatch) -> None:
    positions = torch.rand(5, 2)
    values = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    colors = draw_graph(axes, edges, values, positions, label="height")
    render(axes)
    assert lines(axes) == 1
    (arrow,) = arrows(axes)
    assert (arrow.xyann, arrow.xy) == (tuple(positions[1].double().tolist()), tuple(positions[2].double().tolist()))
    touched, lonely = nodes(axes)
    assert touched.get_offsets().tolist() == positions[:3].double().tolist()
    assert lonely.get_offsets().tolist() == positions[3:].double().tolist()
    assert touched.get_linestyle() != lonely.get_linestyle()
    faces = [tuple(face) for group in (touched, lonely) for face in group.get_facecolor()]
    assert faces == [to_rgba(colors.to_rgba(float(value))) for value in values]  # type: ignore[arg-type]
    assert colors.get_clim() == (0, 4)
    assert [other.get_ylabel() for other in axes.figure.axes if other is not axes] == ["height"]
    assert axes.get_aspect() == 1


def test_colours_within_given_limits_and_without_a_bar(axes: Axes) -> None:
    colors = draw_graph(axes, EDGES, torch.ones(5, 1), limits=(-1, 3), colorbar=False)
    assert colors.get_clim() == (-1, 3)
    assert axes.figure.axes == [axes]


def test_the_layout_depends_on_its_seed_alone() -> None:
    def places(seed: int) -> list[list[float]]:
        axes = Figure().subplots()
        draw_graph(axes, EDGES, torch.zeros(5), seed=seed)
        return nodes(axes)[0].get_offsets().tolist()  # type: ignore[union-attr]

    assert places(0) == places(0) != places(1)


def test_graphs_of_one_node_and_of_none(axes: Axes) -> None:
    none = torch.empty(2, 0, dtype=torch.long)
    draw_graph(axes, none, torch.ones(1))
    draw_graph(axes, none, torch.ones(0), colorbar=False)
    render(axes)
    assert [len(group.get_offsets()) for group in nodes(axes)] == [1]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument(axes: Axes) -> None:
    with pytest.raises(ValueError, match=r"energy must have shape \[steps \+ 1, S\], got \[1, 1, 1\]"):
        draw_energy(axes, torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match="labels must name each of the 2 graphs, got 1"):
        draw_energy(axes, torch.ones(3, 2), ["one"])
    with pytest.raises(ValueError, match=r"mean must have shape \[S, D \+ 1\], got \[1, 1, 1\]"):
        draw_influence(axes, torch.ones(1, 1, 1))
    with pytest.raises(ValueError, match="labels must name each of the 1 rows, got 2"):
        draw_influence(axes, torch.ones(3), ["one", "two"])
    with pytest.raises(ValueError, match=r"values must be one for each node, \[n\] or \[n, 1\], got \[5, 2\]"):
        draw_graph(axes, EDGES, torch.ones(5, 2))
    with pytest.raises(ValueError, match=r"positions must have shape \[5, 2\], got \[4, 2\]"):
        draw_graph(axes, EDGES, torch.ones(5), torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"edge_index must lie in 0..2 for 3 nodes, got 0..3"):
        draw_graph(axes, EDGES, torch.ones(3))
    with pytest.raises(ValueError, match="values has 3 entries, but the graphs have 5 nodes"):
        draw_graph(axes, GraphBatch(EDGES, 5), torch.ones(3))
