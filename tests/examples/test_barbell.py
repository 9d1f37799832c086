"""On the barbell graph TANGO carries more signal over the bridge than gradient flow, and the energy falls in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.colors import Normalize
from torch import Tensor

from examples import barbell as example
from examples.barbell_flows import BarbellResult, EulerBeta, FluxTangent, barbell, barbell_graph
from lyapflow import Flow, LyapunovField
from lyapflow.testing import Graphs, graphs, states
from lyapflow_graph import DirichletEnergy, GraphBatch

EPS = torch.finfo(torch.float64).eps


@pytest.fixture(scope="module")
def result() -> BarbellResult:
    return barbell(train_steps=20)


# -- the graph --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("clique", "bridge"), [(2, 0), (3, 1), (10, 4), (7, 0)])
def test_the_graph_is_that_of_networkx(clique: int, bridge: int) -> None:
    graph, positions = barbell_graph(clique, bridge)
    found = [tuple(edge) for edge in graph.edge_index.T.tolist()]
    assert len(set(found)) == len(found)
    assert nx.is_isomorphic(nx.Graph(found), nx.barbell_graph(clique, bridge))
    assert {(b, a) for a, b in found} == set(found)
    assert positions.shape == (graph.num_nodes, 2)
    assert float(torch.pdist(positions).min()) > 0.1  # no two nodes at one place
    left, right = positions[:clique, 0], positions[clique + bridge :, 0]
    assert float(left.max()) < float(right.min())
    assert positions[clique : clique + bridge, 0].tolist() == sorted(positions[clique : clique + bridge, 0].tolist())
    assert int(left.argmax()) == clique - 1  # where the bridge begins
    assert int(right.argmin()) == 0


# -- the parts of the field -------------------------------------------------------------------------------------------


def batch_of(drawn: Graphs) -> GraphBatch:
    return GraphBatch(drawn.edge_index, drawn.nodes, batch=drawn.batch, batch_size=drawn.count)


def flux(seed: int) -> FluxTangent:
    torch.manual_seed(seed)
    tangent = FluxTangent().double()
    torch.nn.init.normal_(tangent.network[2].weight)
    return tangent


@given(data=st.data(), drawn=graphs(), seed=st.integers(0, 99))
def test_flux_preserves_the_sum_and_goes_one_edge(data: st.DataObject, drawn: Graphs, seed: int) -> None:
    h = data.draw(states((drawn.nodes, 1)))
    direction = flux(seed).bind(batch_of(drawn))(h).detach()
    total = batch_of(drawn).total(direction)
    size = batch_of(drawn).total(h.abs())
    assert bool((total.abs() <= 5 * 64 * 36 * EPS * size).all())
    signal = h[:, 0] != 0
    reached = signal.clone()
    source, target = drawn.edge_index
    reached[target[signal[source]]] = True
    assert not direction[~reached].any()


@given(data=st.data(), drawn=graphs(), seed=st.integers(0, 99), scale=st.sampled_from([2.0**-12, 2.0**12]))
def test_flux_of_a_graph_alone_and_at_other_scales(data: st.DataObject, drawn: Graphs, seed: int, scale: float) -> None:
    h = data.draw(states((drawn.nodes, 1), scales=(1e-3, 1e3)))
    tangent = flux(seed)
    together = tangent.bind(batch_of(drawn))(h).detach()
    assert torch.equal(tangent.bind(batch_of(drawn))(scale * h), scale * together)
    for graph in range(drawn.count):
        nodes = (drawn.batch == graph).nonzero()[:, 0]
        if len(nodes):
            inside = drawn.batch[drawn.edge_index[0]] == graph
            alone = GraphBatch(drawn.edge_index[:, inside] - nodes[0], len(nodes))
            assert torch.allclose(tangent.bind(alone)(h[nodes]), together[nodes], rtol=1e-12, atol=1e-12)


SIZES = st.sampled_from([1e-2, 1.0, 1e3])


@given(data=st.data(), drawn=graphs(), step=st.floats(0.05, 1.95), size=SIZES, seed=st.integers(0, 99))
def test_eulers_steps_never_raise_the_energy_whatever_the_direction(
    data: st.DataObject, drawn: Graphs, step: float, size: float, seed: int
) -> None:
    batch = batch_of(drawn)
    h = data.draw(states((drawn.nodes, 2), scales=(1e-3, 1e3)))
    mix = size * torch.randn(drawn.nodes, drawn.nodes, generator=torch.Generator().manual_seed(seed)).double()
    mix = torch.where(drawn.batch[:, None] == drawn.batch, mix, 0.0)

    def direction(h: Tensor) -> Tensor:  # without a constant part, along which the energy is flat and the state grows
        return mix @ h - batch.pool(mix @ h, "mean")[drawn.batch]

    energy = DirichletEnergy(systems=batch)
    # An eigenvalue is at most twice the largest degree, and a degree is half of the ends.
    ends = max(1.0, float(torch.bincount(drawn.edge_index.flatten(), minlength=drawn.nodes).max()))
    field = LyapunovField(energy, direction, beta=EulerBeta(energy, step / ends))
    solution = Flow(field, steps=6, step_size=step / ends).solve(h, saveat="steps")
    rounding = 8 * EPS * ends * batch.total(solution.ys.square().amax(0))
    assert bool((solution.energy.diff(dim=0) <= rounding).all()), solution.energy


def test_beta_is_the_largest_that_leaves_a_fifth_of_the_descent() -> None:
    graph, _ = barbell_graph(3, 1)
    energy = DirichletEnergy(systems=graph)
    h = torch.randn(7, 1, dtype=torch.float64)
    far = 100 * torch.randn(7, 1, dtype=torch.float64)
    parts = LyapunovField(energy, lambda h: far, beta=EulerBeta(energy, 0.2)).parts(0.0, h)
    assert 0 < float(parts.beta) < 1
    descent = energy(h) - energy(h - 0.2 * parts.gradient)
    assert float(energy(h) - energy(h + 0.2 * parts.velocity)) == pytest.approx(0.2 * float(descent), rel=1e-9)
    near = LyapunovField(energy, lambda h: 1e-4 * far, beta=EulerBeta(energy, 0.2)).parts(0.0, h)
    assert float(near.beta) == 1
    at_rest = LyapunovField(energy, lambda h: far, beta=EulerBeta(energy, 0.2)).parts(0.0, torch.ones_like(h))
    assert float(at_rest.beta) == 0


def test_the_field_can_be_differentiated() -> None:
    graph, _ = barbell_graph(3, 1)
    energy = DirichletEnergy(systems=graph)
    field = LyapunovField(energy, flux(0), beta=EulerBeta(energy, 0.2))
    h = torch.randn(7, 1, dtype=torch.float64, requires_grad=True)
    assert bool(field.parts(0.0, h.detach()).beta < 1)  # so that the cut is part of it
    assert torch.autograd.gradcheck(lambda h: field(0.0, h), h)


# -- the flows --------------------------------------------------------------------------------------------------------


def test_tango_crosses_and_gradient_flow_does_not(result: BarbellResult) -> None:
    assert result.gradient_flow.crossed < 0.025
    assert result.tango.crossed > 5 * result.gradient_flow.crossed
    assert result.tango.crossed > 0.3 * result.uniform
    best = max(barbell(step=step, train_steps=0).gradient_flow.crossed for step in (1.5, 1.9, 1.999))
    assert result.tango.crossed > 1.8 * best  # gradient flow may take the steps that suit it best


def test_the_energy_falls_in_every_step_of_both(result: BarbellResult) -> None:
    for way in (result.gradient_flow, result.tango):
        assert way.energy.shape == (51,)
        assert way.largest_rise < 0
        assert float(way.energy[0]) == pytest.approx(4.5)
    assert float(result.tango.energy[-1]) < float(result.gradient_flow.energy[-1])


def test_gradient_flow_is_the_laplacians(result: BarbellResult) -> None:
    laplacian = torch.tensor(nx.laplacian_matrix(nx.barbell_graph(10, 4)).toarray(), dtype=torch.float64)
    largest = float(torch.linalg.eigvalsh(laplacian)[-1])
    assert result.step_size == pytest.approx(1 / largest, rel=1e-12)
    start = torch.zeros(24, dtype=torch.float64)
    start[0] = 1  # all nodes of the clique but the last, where the bridge begins, are alike
    end = torch.linalg.matrix_power(torch.eye(24, dtype=torch.float64) - laplacian / largest, 50) @ start
    assert result.gradient_flow.crossed == pytest.approx(float(end[14:].sum()), rel=1e-9)


def test_signal_starts_on_the_left_and_none_is_made(result: BarbellResult) -> None:
    assert result.source == int(result.positions[:, 0].argmin())
    for way in (result.gradient_flow, result.tango):
        assert way.states[0].nonzero().flatten().tolist() == [result.source]
        assert torch.allclose(way.states.sum(1), torch.ones(51, dtype=torch.float64), rtol=0, atol=64 * EPS)
        beyond = (way.states[:, 14:] != 0).any(1)
        assert int(beyond.nonzero()[0]) == 6  # one edge a step
        assert way.crossed == pytest.approx(float(way.states[-1, 14:].abs().sum() / way.states[-1].abs().sum()))


def test_training_lowers_the_loss_and_the_untrained_flow_crosses_less(result: BarbellResult) -> None:
    assert result.losses[-1] < result.losses[0]
    assert barbell(train_steps=0).tango.crossed < result.tango.crossed


def test_a_seed_gives_one_result_and_leaves_the_generator_alone() -> None:
    def run(seed: int) -> Tensor:
        return barbell(8, clique=4, bridge=1, train_steps=3, seed=seed).tango.states

    before = torch.random.get_rng_state()
    first = run(0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(run(0), first)
    assert not torch.equal(run(1), first)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"step": 2.0}, "step must lie between 0 and 2"),
    ({"clique": 1}, "clique must be 2 at the least, got 1"),
    ({"bridge": -1}, "bridge must not be negative, got -1"),
    ({"train_steps": -1}, "train_steps must not be negative, got -1"),
])  # fmt: skip
def test_errors(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        barbell(**wrong)


def test_flux_moves_one_channel() -> None:
    graph, _ = barbell_graph(3, 1)
    with pytest.raises(ValueError, match=r"one channel, a state of shape \[num_nodes, 1\]; got \[7, 2\]"):
        FluxTangent().bind(graph)(torch.ones(7, 2))


# -- the example ------------------------------------------------------------------------------------------------------


def test_influence_reaches_further_by_tango(result: BarbellResult) -> None:
    descent, tango = (example.influence_of(way, result).mean[0] for way in (result.gradient_flow, result.tango))
    assert descent.shape == tango.shape == (8,)
    assert float(tango[-1]) > 5 * float(descent[-1])
    # Gradient flow is linear: its influence is the state that the signal of 1 ends in.
    end = result.gradient_flow.states[-1]
    assert float(descent[0]) == pytest.approx(float(end[result.source]), rel=1e-9)
    assert float(descent[-1]) == pytest.approx(float(end[15:].mean()), rel=1e-9)


@pytest.mark.slow
def test_runs_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--quick", "--out", str(tmp_path)])
    for name in ("barbell.png", "barbell_courses.png"):
        assert (tmp_path / name).stat().st_size > 10_000
    printed = capsys.readouterr().out
    for word in ("gradient flow", "TANGO", "crossed", "largest rise", "seconds", "2.04%"):
        assert word in printed


def test_the_barbell_has_three_panels_at_one_scale(tmp_path: Path) -> None:
    result = barbell(5, clique=3, bridge=1, train_steps=1)
    figure = result.plot(tmp_path / "new" / "barbell.png")
    *panels, bar = figure.axes
    assert [axes.get_title(loc="left") for axes in panels] == [
        "(a) the start", "(b) gradient flow, 5 steps", "(c) TANGO, 5 steps"
    ]  # fmt: skip
    shares = (0.0, result.gradient_flow.crossed, result.tango.crossed)
    assert [axes.get_xlabel() for axes in panels] == [f"{s:.1%} of the signal is beyond the bridge" for s in shares]
    assert bar.get_ylabel() == "feature"
    scale = ScalarMappable(Normalize(*bar.get_ylim()), "viridis")
    states = result.tango.states[0], result.gradient_flow.states[-1], result.tango.states[-1]
    for axes, state in zip(panels, states, strict=True):
        (drawn,) = (artist for artist in axes.collections if isinstance(artist, PathCollection))
        (edges,) = (artist for artist in axes.collections if isinstance(artist, LineCollection))
        assert drawn.get_facecolor().tolist() == scale.to_rgba(state.numpy()).tolist()
        assert len(edges.get_segments()) == 8
    assert (tmp_path / "new" / "barbell.png").stat().st_size > 10_000
