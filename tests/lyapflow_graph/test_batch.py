"""Graphs as systems."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Batch, Data
from torch_geometric.index import index2ptr

from lyapflow_graph import GraphBatch
from solvers import Segments
from tests.lyapflow_graph.cases import alone, batches, example, features, renumbered

EDGES = torch.tensor([[0, 1], [1, 0]])


@given(batches(), st.integers(0, 100))
def test_it_is_segments(graphs: GraphBatch, seed: int) -> None:
    h = features(graphs, seed=seed)
    bound, segments = graphs.bind(h), Segments(graphs.graph_of_node, graphs.count).bind(h)
    values = torch.arange(graphs.count, dtype=h.dtype)
    assert bound.count == segments.count
    for a, b in [
        (bound.sizes, segments.sizes),
        (bound.total(h), segments.total(h)),
        (bound.inner(h, h), segments.inner(h, h)),
        (bound.largest(h), segments.largest(h)),
        (bound.spread(values).expand_as(h), segments.spread(values).expand_as(h)),
    ]:
        assert torch.equal(a, b)


@given(batches(), st.integers(0, 100))
def test_pools_are_those_of_every_graph(graphs: GraphBatch, seed: int) -> None:
    h = features(graphs, seed=seed)
    for i in range(graphs.count):
        own = h[graphs.graph_of_node == i]
        nothing = torch.zeros(h.shape[1], dtype=h.dtype)
        torch.testing.assert_close(graphs.pool(h, "sum")[i], own.sum(0))
        torch.testing.assert_close(graphs.pool(h, "mean")[i], own.mean(0) if len(own) else nothing)
        torch.testing.assert_close(graphs.pool(h, "max")[i], own.amax(0) if len(own) else nothing)
    single, nodes = alone(graphs, 0)
    torch.testing.assert_close(single.pool(h[nodes], "mean")[0], graphs.pool(h, "mean")[0])


@given(batches(), st.integers(0, 6), st.integers(0, 100))
def test_blocks_hold_every_node_once_with_its_own_graph(graphs: GraphBatch, limit: int, seed: int) -> None:
    graphs = renumbered(graphs, torch.randperm(graphs.num_nodes, generator=torch.Generator().manual_seed(seed)))
    node = torch.arange(1, graphs.num_nodes + 1)
    seen = []
    for padding, small in zip(graphs.paddings(limit), (True, False), strict=True):
        if padding is None:
            continue
        block = padding.pad(node)
        assert torch.equal(block > 0, padding.present)
        for row in block:
            own = row[row > 0]
            of_graph = set(graphs.graph_of_node[own - 1].tolist())
            assert len(of_graph) == 1
            assert len(own) == int(graphs.node_counts[of_graph.pop()])
            assert (len(own) <= limit) is small
            seen += own.tolist()
        chosen = node if padding.nodes is None else node[padding.nodes]
        assert torch.equal(padding.unpad(block), chosen)
    assert sorted(seen) == node.tolist()


def test_data_and_batches_of_torch_geometric() -> None:
    pair = Data(x=torch.ones(2, 1), edge_index=EDGES, edge_attr=torch.ones(2, 3))
    graphs = GraphBatch.of(pair)
    assert (graphs.count, graphs.num_nodes, graphs.num_edges, graphs.batch) == (1, 2, 2, None)
    batch = Batch.from_data_list([pair, Data(x=torch.ones(1, 1), edge_index=EDGES[:, :0], edge_attr=torch.ones(0, 3))])
    graphs = GraphBatch.of(batch)
    assert (graphs.count, graphs.node_counts.tolist()) == (2, [2, 1])
    assert torch.equal(index2ptr(graphs.graph_of_node, 2), batch.ptr)
    # A last graph without nodes is seen only by num_graphs.
    empty = Data(x=torch.ones(0, 1), edge_index=EDGES[:, :0], edge_attr=torch.ones(0, 3))
    assert GraphBatch.of(Batch.from_data_list([pair, empty])).count == 2


def test_edges_may_be_of_other_integer_types_or_torch_geometrics_own() -> None:
    from torch_geometric import EdgeIndex

    for edges in (EDGES.int(), EdgeIndex(EDGES, sparse_size=(2, 2))):
        graphs = GraphBatch(edges, 2)
        assert type(graphs.edge_index) is torch.Tensor
        assert torch.equal(graphs.edge_index, EDGES)


def test_the_batch_is_left_as_it_is() -> None:
    batch = torch.tensor([1, 0])
    loops = torch.tensor([[0], [0]])
    graphs = GraphBatch(loops, 2, torch.ones(1), batch)
    assert graphs.edge_attr is not None
    assert graphs.edge_attr.shape == (1, 1)
    other = graphs.with_edge_attr(torch.zeros(1, 5))
    assert other.edge_attr is not None
    assert (list(other.edge_attr.shape), list(graphs.edge_attr.shape)) == ([1, 5], [1, 1])
    assert other.node_counts is graphs.node_counts  # worked out once for all copies


def test_tensors_of_inference_mode_become_ordinary() -> None:
    with torch.inference_mode():
        graphs = GraphBatch(EDGES.clone(), 2, torch.ones(2, 1), torch.zeros(2, dtype=torch.long))
    assert graphs.edge_attr is not None
    assert graphs.batch is not None
    assert not any(tensor.is_inference() for tensor in (graphs.edge_index, graphs.edge_attr, graphs.batch))


def test_it_can_be_copied_and_pickled() -> None:
    graphs = example(edge_dim=2)
    for twin in (copy.deepcopy(graphs), pickle.loads(pickle.dumps(graphs))):
        assert torch.equal(twin.edge_index, graphs.edge_index)
        assert repr(twin) == repr(graphs) == "GraphBatch(graphs=4, nodes=10, edges=10, edge_attr=[10, 2])"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"edge_index": EDGES + 1}, ValueError, r"edge_index must lie in 0\.\.1 for 2 nodes, got 1\.\.2"),
        ({"edge_index": EDGES - 1}, ValueError, r"edge_index must lie in 0\.\.1 for 2 nodes, got -1\.\.0"),
        ({"edge_index": EDGES.float()}, TypeError, "edge_index must hold integers, got torch.float32"),
        ({"edge_index": EDGES.bool()}, TypeError, "edge_index must hold integers, got torch.bool"),
        ({"edge_index": torch.zeros(3, 2).long()}, ValueError, r"edge_index must have shape \[2, E\], got \[3, 2\]"),
        ({"edge_index": [[0], [1]]}, TypeError, "edge_index must be a tensor .* got list"),
        ({"edge_index": EDGES.to_sparse()}, TypeError, "edge_index must be a dense tensor"),
        ({"edge_attr": torch.ones(3, 1)}, ValueError, r"edge_attr must have shape \[2, edge_dim\], .* got \[3, 1\]"),
        ({"edge_attr": torch.tensor([1.0, float("nan")])}, ValueError, "edge_attr is not finite"),
        ({"edge_attr": "none"}, TypeError, "edge_attr must be a tensor, got str"),
        ({"batch": torch.tensor([0, 0, 0])}, ValueError, r"batch must have one entry for each of the 2 nodes"),
        ({"batch": torch.tensor([0.0, 0.0])}, TypeError, "batch must hold integers"),
        ({"batch": [0, 0]}, TypeError, "batch must be a tensor, got list"),
        ({"batch": torch.tensor([-1, -1])}, ValueError, "index must lie in"),
        ({"batch": torch.tensor([1, 1]), "batch_size": 1}, ValueError, "index must lie in"),
        ({"batch": torch.tensor([0, 1])}, ValueError, "edge 0 joins node 0 of graph 0 with node 1 of graph 1"),
        ({"batch_size": 2}, ValueError, "without batch all nodes belong to one graph"),
    ],
)
def test_bad_input_is_named(arguments: dict[str, object], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        GraphBatch(**{"edge_index": EDGES, "num_nodes": 2, **arguments})  # type: ignore[arg-type]


def test_a_state_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="the graphs have 2 nodes, but the state is 3 rows"):
        GraphBatch(EDGES, 2).bind(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="a scalar"):
        GraphBatch(EDGES, 2).bind(torch.zeros(()))
    with pytest.raises(ValueError, match="no edge_index"):
        GraphBatch.of(Data(x=torch.ones(2, 1)))
