"""Diagnostics say what they promise: closed forms, networkx, laws of circuits, and no graph depends on another."""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lyapflow import LyapunovField
from lyapflow.testing import Graphs, graphs, states
from lyapflow_graph import DirichletEnergy, DynamicsConv, GraphBatch
from lyapflow_graph import diagnostics as d
from lyapflow_graph.diagnostics import (
    dirichlet_energy,
    effective_resistance,
    energy_per_step,
    influence,
    influence_over_distance,
    mean_average_distance,
    spectral_gap,
)

EPS = torch.finfo(torch.float64).eps
SMOOTHNESS = pytest.mark.parametrize(
    "measure",
    [dirichlet_energy, lambda x, g: dirichlet_energy(x, g, normalized=True), mean_average_distance],
    ids=["dirichlet", "normalized", "mad"],
)


def both_ways(*edges: tuple[int, int]) -> Tensor:
    one_way = torch.tensor(edges).reshape(-1, 2).T
    return torch.cat([one_way, one_way.flip(0)], dim=1)


def path(n: int) -> Tensor:
    return both_ways(*((i, i + 1) for i in range(n - 1)))


def cycle(n: int) -> Tensor:
    return both_ways(*((i, (i + 1) % n) for i in range(n)))


def complete(n: int) -> Tensor:
    return both_ways(*((i, j) for i in range(n) for j in range(i)))


def batch_of(drawn: Graphs) -> GraphBatch:
    return GraphBatch(drawn.edge_index, drawn.nodes, batch=drawn.batch, batch_size=drawn.count)


def alone(drawn: Graphs, graph: int) -> tuple[Tensor, GraphBatch]:
    """The nodes of one graph of a batch, and the graph by itself."""
    nodes = (drawn.batch == graph).nonzero()[:, 0]
    inside = drawn.batch[drawn.edge_index[0]] == graph
    first = int(nodes[0]) if len(nodes) else 0
    return nodes, GraphBatch(drawn.edge_index[:, inside] - first, len(nodes))


def shuffled(drawn: Graphs, order: Tensor) -> GraphBatch:
    """Node `order[k]` becomes node k."""
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))
    return GraphBatch(place[drawn.edge_index], drawn.nodes, batch=drawn.batch[order], batch_size=drawn.count)


@st.composite
def on_graphs(draw: st.DrawFn, scales: tuple[float, float] = (1e-6, 1e6)) -> tuple[Graphs, Tensor]:
    drawn = draw(graphs())
    dtype = draw(st.sampled_from([torch.float64, torch.float32]))
    return drawn, draw(states((drawn.nodes, draw(st.integers(1, 3))), dtype, scales))


def assert_close(actual: Tensor, expected: Tensor, roundings: float, size: Tensor | float | None = None) -> None:
    """To so many roundings of the type, relative to the size of what is computed."""
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    largest = expected.abs() if size is None else torch.as_tensor(size, dtype=expected.dtype)
    error = (actual - expected).abs()
    assert bool((error <= roundings * torch.finfo(actual.dtype).eps * largest).all()), (actual, expected)


# -- smoothing --------------------------------------------------------------------------------------------------------


@SMOOTHNESS
@given(case=on_graphs())
def test_a_graph_is_measured_alike_alone_and_in_a_batch(measure: Any, case: tuple[Graphs, Tensor]) -> None:
    drawn, x = case
    together = measure(x, batch_of(drawn))
    assert together.shape == (drawn.count,)
    for graph in range(drawn.count):
        nodes, one = alone(drawn, graph)
        assert_close(together[graph : graph + 1], measure(x[nodes], one), 8)


@SMOOTHNESS
@given(case=on_graphs(), seed=st.integers(0, 99))
def test_the_order_of_nodes_does_not_matter(measure: Any, case: tuple[Graphs, Tensor], seed: int) -> None:
    drawn, x = case
    order = torch.randperm(drawn.nodes, generator=torch.Generator().manual_seed(seed))
    assert_close(measure(x[order], shuffled(drawn, order)), measure(x, batch_of(drawn)), 16)


@given(case=on_graphs())
def test_constant_features_have_neither_energy_nor_distance(case: tuple[Graphs, Tensor]) -> None:
    drawn, x = case
    constant = x[:1].expand_as(x)
    assert not dirichlet_energy(constant, batch_of(drawn)).any()
    assert not mean_average_distance(constant, batch_of(drawn)).any()


@given(case=on_graphs((1e-3, 1e3)), exponent=st.integers(-8, 8), factor=st.floats(0.1, 10))
def test_scaling(case: tuple[Graphs, Tensor], exponent: int, factor: float) -> None:
    drawn, x = case
    g, c = batch_of(drawn), factor * 2.0**exponent
    for normalized in (False, True):
        energy = dirichlet_energy(x, g, normalized=normalized)
        # The energy is that of differences: relative to the squares it is made from, there may be cancellation.
        size = c**2 * g.total(x.square()) * 36
        assert_close(dirichlet_energy(c * x, g, normalized=normalized), c**2 * energy, 16, size)
    distance = mean_average_distance(x, g)
    assert_close(mean_average_distance(c * x, g), distance, 16, 1.0)
    assert torch.equal(mean_average_distance(-(2.0**exponent) * x, g), distance)


@given(case=on_graphs())
def test_the_distance_is_that_of_its_definition(case: tuple[Graphs, Tensor]) -> None:
    drawn, x = case
    found = mean_average_distance(x.double(), batch_of(drawn))
    for graph in range(drawn.count):
        of_nodes = []
        for i in (drawn.batch == graph).nonzero()[:, 0].tolist():
            neighbours = [a for a, b in drawn.edge_index.T.tolist() if b == i and a != i]
            distances = [cosine_distance(x[i].double(), x[j].double()) for j in neighbours]
            of_nodes += [sum(distances) / len(distances)] if distances else []
        expected = sum(of_nodes) / len(of_nodes) if of_nodes else 0.0
        assert float(found[graph]) == pytest.approx(expected, abs=16 * EPS)


def cosine_distance(a: Tensor, b: Tensor) -> float:
    if not a.any() or not b.any():
        return float(bool(a.any()) != bool(b.any()))
    return 1 - float((a / a.norm()) @ (b / b.norm()))


def test_distance_keeps_its_accuracy_between_nearly_parallel_features() -> None:
    angle = 1e-7
    x = torch.tensor([[1.0, 0.0], [math.cos(angle), math.sin(angle)]], dtype=torch.float64)
    assert float(mean_average_distance(x, path(2))) == pytest.approx(angle**2 / 2, rel=1e-6)


def test_smoothness_can_be_differentiated() -> None:
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    graph = GraphBatch(
        torch.tensor([[0, 1, 1, 3, 3, 3], [1, 0, 2, 4, 4, 3]]), 6, batch=torch.tensor([0, 0, 0, 1, 1, 2])
    )
    assert torch.autograd.gradcheck(lambda x: dirichlet_energy(x, graph), x)
    assert torch.autograd.gradcheck(lambda x: mean_average_distance(x, graph), x)
    zeros = torch.zeros(6, 2, requires_grad=True)
    (slope,) = torch.autograd.grad(mean_average_distance(zeros, graph).sum(), zeros)
    assert bool(torch.isfinite(slope).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_types(dtype: torch.dtype) -> None:
    x = torch.tensor([[1.0], [0.0], [-2.0]], dtype=dtype)
    assert torch.equal(dirichlet_energy(x, path(3)), torch.tensor([2.5], dtype=dtype))
    assert torch.equal(mean_average_distance(x, path(3)), torch.tensor([1.0], dtype=dtype))
    tiny = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=dtype) * torch.finfo(dtype).tiny
    assert float(mean_average_distance(tiny, path(2))) == pytest.approx(1, rel=4 * torch.finfo(dtype).eps)


def test_batch_may_be_given_apart() -> None:
    x, edges, batch = torch.randn(5, 2), torch.tensor([[0, 1, 3], [1, 0, 4]]), torch.tensor([0, 0, 1, 2, 2])
    for measure in (dirichlet_energy, mean_average_distance):
        assert torch.equal(measure(x, edges, batch), measure(x, GraphBatch(edges, 5, batch=batch)))
        assert measure(x, edges, batch).shape == (3,)


# -- energies along a flow --------------------------------------------------------------------------------------------


class Diffusion(DynamicsConv):
    def bind(self, graphs: GraphBatch) -> LyapunovField:
        return LyapunovField(DirichletEnergy(systems=graphs))


class Bare(DynamicsConv):
    def bind(self, graphs: GraphBatch) -> Any:
        return lambda t, h: -h


@given(drawn=graphs(), seed=st.integers(0, 99))
def test_energy_per_step_is_that_of_the_states(drawn: Graphs, seed: int) -> None:
    x = torch.randn(drawn.nodes, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    conv, h, expected = Diffusion(2, num_steps=3, step_size=0.02), x, []
    laplacian = torch.autograd.functional.hessian(lambda h: dirichlet_energy(h, drawn.edge_index).sum(), x[:, :1])
    for _ in range(4):
        expected.append(dirichlet_energy(h, batch_of(drawn)))
        h = h - 0.02 * laplacian.reshape(drawn.nodes, drawn.nodes) @ h
    found = energy_per_step(conv, x, batch_of(drawn))
    assert found.shape == (4, drawn.count)
    assert_close(found, torch.stack(expected), 64, float(expected[0].max()) + 1)
    assert torch.equal(energy_per_step(conv, x, drawn.edge_index, batch=drawn.batch, batch_size=drawn.count), found)


def test_energy_per_step_needs_a_layer_with_an_energy() -> None:
    with pytest.raises(TypeError, match="conv must be a DynamicsConv, got Linear"):
        energy_per_step(torch.nn.Linear(1, 1), torch.ones(2, 1), path(2))  # type: ignore[arg-type]
    with pytest.raises(AttributeError, match="has no energy"):
        energy_per_step(Bare(1), torch.ones(2, 1), path(2))


# -- influence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frobenius", "sum"])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_influence_is_the_norm_of_blocks_of_the_jacobian(norm: Any, chunk: int) -> None:
    torch.manual_seed(1)
    mix, weight = torch.randn(5, 5, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    x = torch.randn(5, 2, dtype=torch.float64)

    def function(x: Tensor) -> Tensor:
        return torch.tanh(mix @ x @ weight)

    jacobian: Tensor = torch.autograd.functional.jacobian(function, x)  # [5, 3, 5, 2]
    blocks = jacobian.permute(0, 2, 1, 3)
    expected = blocks.square().sum((2, 3)).sqrt() if norm == "frobenius" else blocks.abs().sum((2, 3))
    assert_close(influence(function, x, norm=norm, chunk=chunk), expected, 16)
    targets, sources = torch.tensor([4, 1, 1]), torch.tensor([0, 3])
    chosen = influence(function, x, targets=targets, sources=sources, norm=norm, chunk=chunk)
    assert_close(chosen, expected[targets][:, sources], 16)


class Unbatched(torch.autograd.Function):
    """Without a rule for batches."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 3 * x

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope * (3.0 if slope.flatten()[0].item() > -1 else 0.0)  # .item() is refused under vmap


def test_influence_of_functions_that_cannot_be_batched() -> None:
    found = influence(lambda x: Unbatched.apply(x), torch.ones(4, 2))
    assert torch.allclose(found, 3 * math.sqrt(2) * torch.eye(4))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_influence_of_a_flow_is_its_propagator(mode: Any) -> None:
    conv, steps = Diffusion(1, num_steps=4, step_size=0.1), torch.eye(5, dtype=torch.float64)
    laplacian = torch.tensor(nx.laplacian_matrix(nx.path_graph(5)).toarray(), dtype=torch.float64)
    propagator = torch.linalg.matrix_power(steps - 0.1 * laplacian, 4)
    with mode():
        x = torch.randn(5, 1, dtype=torch.float64)
        found = influence(lambda x: conv(x, path(5)), x)
    assert_close(found, propagator.abs(), 16, 1.0)
    assert not found.requires_grad
    checkpointed = Diffusion(1, num_steps=4, step_size=0.1, checkpoint=True)
    assert_close(influence(lambda x: checkpointed(x, path(5)), torch.ones_like(x)), propagator.abs(), 16, 1.0)


def test_influence_of_a_constant_and_of_nothing() -> None:
    assert not influence(lambda x: torch.ones(3, 2), torch.ones(3, 1)).any()
    assert influence(lambda x: x, torch.ones(0, 1)).shape == (0, 0)
    assert influence(lambda x: x[:, :0], torch.ones(2, 1)).tolist() == [[0, 0], [0, 0]]


@given(drawn=graphs(), steps=st.integers(0, 4))
def test_influence_spreads_one_hop_a_step_and_not_to_other_graphs(drawn: Graphs, steps: int) -> None:
    x = torch.randn(drawn.nodes, 1, dtype=torch.float64)
    source, target = drawn.edge_index

    def walk(x: Tensor) -> Tensor:
        for _ in range(steps):
            x = x + torch.zeros_like(x).index_add(0, target, x[source])
        return x

    found = influence_over_distance(walk, x, batch_of(drawn))
    assert not found.mean[:, steps + 1 :].nan_to_num().any()
    assert bool((found.mean[:, : steps + 1].nan_to_num(nan=1.0) >= 1).all())
    assert not found.unreachable.nan_to_num().any()
    graph = nx.MultiDiGraph(drawn.edge_index.T.tolist())
    graph.add_nodes_from(range(drawn.nodes))
    lengths = dict(nx.all_pairs_shortest_path_length(graph))
    for g in range(drawn.count):
        own = (drawn.batch == g).nonzero()[:, 0].tolist()
        distances = [lengths[a].get(b, -1) for a in own for b in own]
        counts = [distances.count(k) for k in range(found.pairs.shape[1])]
        assert found.pairs[g].tolist() == counts
        assert found.mean[g].isnan().tolist() == [count == 0 for count in counts]
        assert bool(found.unreachable[g].isnan()) == (distances.count(-1) == 0)


def test_distance_runs_along_edges() -> None:
    one_way = torch.tensor([[0, 1], [1, 2]])

    def forward(x: Tensor) -> Tensor:
        return torch.zeros_like(x).index_add(0, one_way[1], 5 * x[one_way[0]]) + 2 * x

    found = influence_over_distance(forward, torch.ones(3, 1), one_way)
    assert found.mean.tolist() == [[2, 5, 0]]
    assert found.pairs.tolist() == [[3, 2, 1]]
    assert found.unreachable.tolist() == [0]
    against = influence_over_distance(forward, torch.ones(3, 1), one_way.flip(0), relative=True)
    assert against.mean.tolist() == [[1, 0, 0]]
    assert against.unreachable.tolist() == [pytest.approx(10 / 3 / 2)]
    chosen = influence_over_distance(forward, torch.ones(3, 1), one_way, sources=torch.tensor([0]))
    assert (chosen.mean.tolist(), chosen.pairs.tolist()) == ([[2, 5, 0]], [[1, 1, 1]])
    chosen = influence_over_distance(forward, torch.ones(3, 1), one_way, targets=torch.tensor([1]))
    assert (chosen.mean.tolist(), chosen.pairs.tolist()) == ([[2, 5]], [[1, 1]])


def test_a_leak_between_graphs_is_seen_in_the_matrix_and_not_in_the_means() -> None:
    batch = torch.tensor([0, 0, 1])
    matrix = influence(lambda x: x - x.mean(0), torch.randn(3, 1))
    assert float(matrix[0, 2]) == pytest.approx(1 / 3)
    found = influence_over_distance(lambda x: x - x.mean(0), torch.randn(3, 1), path(2), batch)
    assert found.pairs.tolist() == [[2, 2], [1, 0]]
    assert found.mean[:, 0].tolist() == [pytest.approx(2 / 3)] * 2


# -- bottlenecks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 7, 40])
def test_resistance_of_paths_and_complete_graphs_and_cycles(n: int) -> None:
    steps = torch.arange(n, dtype=torch.float64)
    distance = (steps[:, None] - steps).abs()
    assert_close(effective_resistance(path(n)), distance, 64 * n, float(n))
    assert_close(effective_resistance(complete(n)), 2 / n * (1 - torch.eye(n, dtype=torch.float64)), 64)
    if n > 2:
        assert_close(effective_resistance(cycle(n)), distance * (n - distance) / n, 64 * n, float(n))


def test_resistance_in_series_and_in_parallel() -> None:
    parallel = both_ways((0, 1), (0, 1), (0, 1), (1, 2), (2, 2))
    pairs = torch.tensor([[0, 1, 0, 2], [1, 2, 2, 2]])
    expected = torch.tensor([1 / 3, 1, 4 / 3, 0], dtype=torch.float64)
    assert_close(effective_resistance(parallel, pairs=pairs), expected, 64)
    one_way = torch.tensor([[0, 1], [1, 2]])  # conducts half as well
    assert_close(effective_resistance(one_way)[0], torch.tensor([0, 2, 4], dtype=torch.float64), 64)


@given(drawn=graphs(max_nodes=8))
def test_resistance_agrees_with_networkx(drawn: Graphs) -> None:
    found = effective_resistance(batch_of(drawn))
    assert torch.equal(found, effective_resistance(drawn.edge_index, drawn.nodes))
    graph = nx.Graph()
    graph.add_nodes_from(range(drawn.nodes))
    for a, b in drawn.edge_index.T.tolist():
        if a != b:
            weight = graph.get_edge_data(a, b, {"weight": 0.0})["weight"]
            graph.add_edge(a, b, weight=weight + 0.5)
    expected = torch.full((drawn.nodes, drawn.nodes), math.inf, dtype=torch.float64)
    for part in nx.connected_components(graph):
        known = {min(part): {min(part): 0.0}}
        if len(part) > 1:
            known = nx.resistance_distance(graph.subgraph(part), weight="weight", invert_weight=False)
        for a in part:
            for b in part:
                expected[a, b] = known[a][b]
    finite = torch.isfinite(expected)
    assert torch.equal(torch.isfinite(found), finite)
    assert_close(found[finite], expected[finite], 1e3, 1.0)
    assert not found.diagonal().any()


def resistance_properties(found: Tensor) -> None:
    assert torch.equal(found, found.T)
    # A metric: no way round is shorter.
    detour = (found[:, :, None] + found[None]).amin(1)
    assert bool((found <= detour + 1e3 * EPS).all())


@given(drawn=graphs())
def test_resistance_is_a_metric_and_falls_with_more_edges(drawn: Graphs) -> None:
    found = effective_resistance(drawn.edge_index, drawn.nodes)
    resistance_properties(found)
    more = torch.cat([drawn.edge_index, drawn.edge_index[:, :1]], dim=1)
    assert bool((effective_resistance(more, drawn.nodes) <= found + 1e3 * EPS).all())


@pytest.mark.parametrize("n", [2, 3, 5, 12])
def test_gap_of_paths_cycles_and_complete_graphs(n: int) -> None:
    def check(edges: Tensor, expected: float, normalized: bool) -> None:
        found = spectral_gap(edges, normalized=normalized)
        assert_close(found, torch.tensor([expected], dtype=torch.float64), 16 * n, 2.0 * n)

    check(complete(n), n / (n - 1), normalized=True)
    check(complete(n), n, normalized=False)
    check(path(n), 2 - 2 * math.cos(math.pi / n), normalized=False)
    check(path(n), 1 - math.cos(math.pi / (n - 1)), normalized=True)
    if n > 2:
        check(cycle(n), 2 - 2 * math.cos(2 * math.pi / n), normalized=False)
        check(cycle(n), 1 - math.cos(2 * math.pi / n), normalized=True)


@pytest.mark.parametrize("normalized", [False, True])
@given(drawn=graphs(), seed=st.integers(0, 99))
def test_gap_is_that_of_the_energys_hessian(normalized: bool, drawn: Graphs, seed: int) -> None:
    order = torch.randperm(drawn.nodes, generator=torch.Generator().manual_seed(seed))
    found = spectral_gap(shuffled(drawn, order), normalized=normalized)
    assert found.shape == (drawn.count,)
    for graph in range(drawn.count):
        nodes, one = alone(drawn, graph)
        if len(nodes) < 2:
            assert float(found[graph]) == math.inf
            continue
        zeros = torch.zeros(len(nodes), 1, dtype=torch.float64)
        energy = lambda h, one=one: dirichlet_energy(h, one, normalized=normalized).sum()  # noqa: E731
        hessian = torch.autograd.functional.hessian(energy, zeros).reshape(len(nodes), -1)
        expected = float(torch.linalg.eigvalsh(hessian)[1])
        size = max(1.0, float(hessian.diagonal().max()))
        assert float(found[graph]) == pytest.approx(expected, abs=64 * EPS * size)
        undirected = nx.Graph(one.edge_index.T.tolist())
        undirected.add_nodes_from(range(len(nodes)))
        assert (float(found[graph]) > 0) == nx.is_connected(undirected)


def test_counts_of_nodes() -> None:
    assert spectral_gap(path(3), torch.tensor([0, 0, 0, 1])).tolist() == [pytest.approx(1), math.inf]
    assert spectral_gap(torch.empty(2, 0, dtype=torch.long)).tolist() == [math.inf]
    assert effective_resistance(torch.empty(2, 0, dtype=torch.long)).shape == (0, 0)
    assert effective_resistance(torch.empty(2, 0, dtype=torch.long), 1).tolist() == [[0]]


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors_name_the_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(3, 1)
    with pytest.raises(ValueError, match=r"x must have shape \[num_nodes, d\], got \[3\]"):
        dirichlet_energy(torch.ones(3), path(3))
    with pytest.raises(TypeError, match=r"x must be of a floating point type, got torch\.int64"):
        mean_average_distance(torch.ones(3, 1, dtype=torch.long), path(3))
    with pytest.raises(ValueError, match='norm must be "frobenius" or "sum", got \'max\''):
        influence(lambda x: x, x, norm="max")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="chunk must be positive, got 0"):
        influence(lambda x: x, x, chunk=0)
    with pytest.raises(ValueError, match=r"targets must lie in 0..2, got 1..3"):
        influence(lambda x: x, x, targets=torch.tensor([1, 3]))
    with pytest.raises(TypeError, match="sources must be a tensor of node numbers, got 1"):
        influence(lambda x: x, x, sources=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"function must give \[3, d_out\], a row for every node, got \[1\]"):
        influence(lambda x: x.sum(0), x)
    with pytest.raises(ValueError, match=r"pairs must have shape \[2, P\], got \[3\]"):
        effective_resistance(path(3), pairs=torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"pairs must lie in 0..2, got 5..5"):
        effective_resistance(path(3), pairs=torch.tensor([[0], [5]]))
    monkeypatch.setattr(d, "LARGEST", 8)
    for refused in (
        lambda: effective_resistance(path(3)),
        lambda: spectral_gap(path(3)),
        lambda: influence(lambda x: x, x),
        lambda: influence_over_distance(lambda x: x, x, path(3)),
    ):
        with pytest.raises(ValueError, match="needs a dense matrix of 9 entries, more than 8: "):
            refused()
