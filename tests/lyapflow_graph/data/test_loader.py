"""Batches are those of PyTorch Geometric, in an order that depends on seed and epoch alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

from lyapflow_graph import GatedGCN, GraphNet
from lyapflow_graph.data import BatchLoader, GraphSet


@st.composite
def graph_lists(draw: st.DrawFn, least: int = 1) -> list[Data]:
    """Graphs of one kind, some without edges, some without nodes."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=least, max_size=9))
    width = draw(st.integers(0, 3))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.long]))
    level = draw(st.sampled_from(["node", "graph", "scalar"]))
    has_edge_attr, has_mask, has_x = draw(st.booleans()), draw(st.booleans()), draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 1000)))

    def one(n: int) -> Data:
        edges = int(torch.randint(0, 3 * n + 1, (), generator=generator)) if n else 0
        data = Data(edge_index=torch.randint(0, max(n, 1), (2, edges), generator=generator))
        if has_x:
            data.x = torch.randint(0, 9, (n, width), generator=generator).to(dtype)
        else:
            data.num_nodes = n
        if has_edge_attr:
            data.edge_attr = torch.rand(edges, 2, generator=generator)
        if has_mask:
            data.mask = torch.rand(n, generator=generator) < 0.5
        shape = {"node": (n,), "graph": (1, 3), "scalar": ()}[level]
        data.y = torch.rand(shape, generator=generator)
        return data

    return [one(n) for n in sizes]


def assert_same(ours: Data, theirs: Data) -> None:
    assert set(ours.keys()) == set(theirs.keys())
    for name in theirs.keys():  # noqa: SIM118
        a, b = ours[name], theirs[name]
        if isinstance(b, torch.Tensor):
            assert a.dtype == b.dtype, name
            assert torch.equal(a, b), name
        else:
            assert a == b, name
    assert ours.num_nodes == theirs.num_nodes


@given(graph_lists(), st.sampled_from([1, 3, 256]), st.data())
def test_a_batch_equals_that_of_pyg(graphs: list[Data], long: int, data: st.DataObject) -> None:
    """Also where graphs are so large that they are copied one by one."""
    index = data.draw(st.lists(st.integers(0, len(graphs) - 1), min_size=1, max_size=12))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lyapflow_graph.data.graphs._LONG", long)
        ours = GraphSet.of(graphs).batch(torch.tensor(index))
    theirs = Batch.from_data_list([graphs[i] for i in index])
    assert isinstance(ours, Batch)
    assert_same(ours, theirs)
    assert ours.num_graphs == theirs.num_graphs
    for a, b in zip(ours.to_data_list(), theirs.to_data_list(), strict=True):
        assert_same(a, b)


@given(graph_lists(), st.data())
def test_a_set_is_a_sequence_of_its_graphs(graphs: list[Data], data: st.DataObject) -> None:
    flat = GraphSet.of(graphs)

    def same(ours: Sequence[Data], theirs: Sequence[Data]) -> None:
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            b = b.clone()
            b.y = b.y[None] if b.y.ndim == 0 else b.y  # as batching makes it
            assert_same(a, b)

    same(flat, graphs)
    assert_same(flat[-1], flat[len(graphs) - 1])
    chosen = data.draw(st.slices(len(graphs)))
    same(flat[chosen], graphs[chosen])
    assert_same(flat.subset(torch.tensor([0, 0])).batch(torch.tensor([1])), flat.batch(torch.tensor([0])))
    with pytest.raises(IndexError):
        flat[len(graphs)]


@given(graph_lists(least=2), st.integers(1, 10), st.booleans(), st.integers(1, 4), st.booleans())
def test_shards_together_are_the_batch(
    graphs: list[Data], size: int, shuffle: bool, world: int, drop_last: bool
) -> None:
    size = min(size, len(graphs))
    options = {"batch_size": size, "shuffle": shuffle, "seed": 3, "drop_last": drop_last}
    alone = list(BatchLoader(graphs, **options))  # type: ignore[arg-type]
    parts = [list(BatchLoader(graphs, shard=(rank, world), **options)) for rank in range(world)]  # type: ignore[arg-type]
    assert {len(part) for part in parts} == {len(alone)}
    assert len(alone) == (len(graphs) // size if drop_last else -(-len(graphs) // size))
    for whole, *pieces in zip(alone, *parts, strict=True):
        together = [graph for piece in pieces for graph in piece.to_data_list()]
        assert_same(whole, Batch.from_data_list(together))


def numbered(count: int) -> list[Data]:
    return [Data(x=torch.full((2, 1), float(i)), edge_index=torch.tensor([[0], [1]])) for i in range(count)]


def order(loader: BatchLoader) -> list[float]:
    return [float(x) for batch in loader for x in batch.x[::2, 0]]


def test_without_shuffling_it_is_the_data_loader_of_pyg() -> None:
    graphs = numbered(7)
    for ours, theirs in zip(BatchLoader(graphs, 3), DataLoader(graphs, batch_size=3), strict=True):
        assert_same(ours, theirs)


def test_the_order_is_of_seed_and_epoch_alone() -> None:
    graphs = numbered(50)
    seen = {}
    for seed in range(3):
        for epoch in range(3):
            loader = BatchLoader(graphs, 8, shuffle=True, seed=seed)
            loader.set_epoch(epoch)
            torch.manual_seed(seed + epoch)  # the global generator has no part in it
            seen[seed, epoch] = order(loader)
            assert sorted(seen[seed, epoch]) == list(range(50))
            state = torch.get_rng_state()
            assert order(loader) == seen[seed, epoch]
            assert torch.equal(state, torch.get_rng_state())
    assert len({tuple(found) for found in seen.values()}) == 9


@given(st.integers(0, 7), st.booleans())
def test_it_goes_on_from_any_batch(start: int, shuffle: bool) -> None:
    loader = BatchLoader(numbered(20), 3, shuffle=shuffle)
    loader.set_epoch(2)
    whole = order(loader)
    loader.set_epoch(2, start=start)
    assert order(loader) == whole[3 * start :]
    assert len(loader) == 7


def test_one_graph_is_given_as_it_is() -> None:
    graph = numbered(1)[0]
    loader = BatchLoader([graph], batch_size=4, shuffle=True, drop_last=True)
    assert len(loader) == 1
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert next(iter(loader)) is graph
    loader.set_epoch(2, start=1)
    assert list(loader) == []


def test_models_take_the_batches() -> None:
    graphs = [Data(x=torch.rand(n, 3), edge_index=torch.tensor([[0], [n - 1]])) for n in (1, 2, 5)]
    model = GraphNet(3, 8, 2, GatedGCN(8, num_layers=2), task="graph")
    alone = torch.cat([model(graph) for graph in graphs])
    torch.testing.assert_close(torch.cat([model(batch) for batch in BatchLoader(graphs, 2)]), alone)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be positive, got 0"),
        ({"seed": -1}, "seed must not be negative"),
        ({"shard": (2, 2)}, "0 <= rank < world"),
        ({"batch_size": 9, "drop_last": True}, "leaves nothing of 3 graphs in batches of 9"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BatchLoader(numbered(3), **{"batch_size": 2, **options})  # type: ignore[arg-type]


def test_wrong_graphs_are_named() -> None:
    graph, loader = numbered(1)[0], BatchLoader(numbered(3), 2)
    with pytest.raises(ValueError, match="at least one"):
        BatchLoader([], 2)
    with pytest.raises(ValueError, match="cannot be divided among 2"):
        BatchLoader([graph], 2, shard=(0, 2))
    with pytest.raises(ValueError, match="start must lie in 0 to 2"):
        loader.set_epoch(0, start=3)
    with pytest.raises(ValueError, match="epoch must not be negative"):
        loader.set_epoch(-1)
    with pytest.raises(ValueError, match=r"of the first, \['x', 'edge_index'\]; graph 1 has \['x'\]"):
        BatchLoader([graph, Data(x=graph.x)], 2)
    with pytest.raises(ValueError, match=r"'x' must be alike in all graphs.*graph 1"):
        BatchLoader([graph, Data(x=graph.x.long(), edge_index=graph.edge_index)], 2)
    with pytest.raises(TypeError, match="'smiles' of graph 0 is a str"):
        BatchLoader([Data(x=graph.x, smiles="C")] * 2, 2)
    with pytest.raises(ValueError, match="one by one"):
        BatchLoader([Batch.from_data_list(numbered(2))] * 2, 2)
    with pytest.raises(TypeError, match="got Tensor for graph 0"):
        BatchLoader([graph.x] * 2, 2)


def test_a_set_of_wrong_tensors_is_refused() -> None:
    pointer = torch.tensor([0, 2])
    with pytest.raises(ValueError, match="'x' has 3 rows, but its pointer ends at 2"):
        GraphSet({"x": torch.zeros(3, 1)}, {"x": pointer}, pointer)
    with pytest.raises(ValueError, match="same names"):
        GraphSet({"x": torch.zeros(2, 1)}, {}, pointer)
    with pytest.raises(ValueError, match=r"\[graphs \+ 1\], got \[3\] for 'x'"):
        GraphSet({"x": torch.zeros(2, 1)}, {"x": torch.tensor([0, 1, 2])}, pointer)
