"""Positional encodings mean what the transforms of PyTorch Geometric mean, and are the same every time."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddLaplacianEigenvectorPE, AddRandomWalkPE
from torch_geometric.utils import get_laplacian, to_dense_adj, to_undirected

from lyapflow_graph.data import GraphSet, encodings, load
from lyapflow_graph.data.encodings import laplacian_eigenvectors, random_walk


@st.composite
def graphs(draw: st.DrawFn, least: int = 1) -> tuple[Tensor, int]:
    n = draw(st.integers(least, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**4)))
    edges = torch.randint(0, n, (2, draw(st.integers(0, 3 * n))), generator=generator)
    edges = edges[:, edges[0] != edges[1]]
    return to_undirected(edges, num_nodes=n), n


@given(graphs(), st.integers(1, 12))
def test_random_walks_are_those_of_pyg(graph: tuple[Tensor, int], width: int) -> None:
    edges, n = graph
    theirs = AddRandomWalkPE(width)(Data(edge_index=edges, num_nodes=n)).random_walk_pe
    assert torch.equal(random_walk(edges, n, width), theirs)


@given(graphs(), st.integers(1, 6))
def test_walks_on_large_graphs_are_the_same(graph: tuple[Tensor, int], width: int) -> None:
    edges, n = graph
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_DENSE_UP_TO", 0)
        patch.setattr(encodings, "_BLOCK", 4)
        found = random_walk(edges, n, width)
    torch.testing.assert_close(found, random_walk(edges, n, width))


def laplacian(edges: Tensor, n: int) -> Tensor:
    index, weight = get_laplacian(edges, normalization="sym", num_nodes=n)
    return to_dense_adj(index, edge_attr=weight.double(), max_num_nodes=n)[0] if n else torch.zeros(0, 0)


def check_eigenvectors(found: Tensor, edges: Tensor, n: int, width: int) -> None:
    """They belong to the lowest eigenvalues but the first, whatever basis is taken where some are equal."""
    assert found.shape == (n, width)
    kept = min(width, n - 1)
    assert (found[:, kept:] == 0).all()
    matrix, vectors = laplacian(edges, n), found[:, :kept].double()
    # An isolated node has 1 on the diagonal of PyTorch Geometric's Laplacian, and 0 by definition.
    alone = torch.ones(n, dtype=torch.bool)
    alone[edges[0]] = False
    matrix[alone, alone] = 0
    values = torch.linalg.eigvalsh(matrix)[1 : kept + 1]
    torch.testing.assert_close(matrix @ vectors, vectors * values, atol=1e-5, rtol=0)
    torch.testing.assert_close(vectors.T @ vectors, torch.eye(kept, dtype=torch.float64), atol=1e-5, rtol=0)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    assert (largest > 0).all() or torch.allclose(vectors.amax(0), -vectors.amin(0), atol=1e-5)


@given(graphs(), st.integers(1, 12))
def test_eigenvectors_are_eigenvectors(graph: tuple[Tensor, int], width: int) -> None:
    edges, n = graph
    found = laplacian_eigenvectors(edges, n, width)
    check_eigenvectors(found, edges, n, width)
    torch.manual_seed(1)
    assert torch.equal(found, laplacian_eigenvectors(edges, n, width))


def test_eigenvectors_are_those_of_pyg_up_to_sign() -> None:
    path = torch.stack([torch.arange(7), torch.arange(1, 8)])
    data = Data(edge_index=to_undirected(path), num_nodes=8)
    theirs = AddLaplacianEigenvectorPE(3, is_undirected=True)(data).laplacian_eigenvector_pe
    torch.testing.assert_close(laplacian_eigenvectors(path, 8, 3).abs(), theirs.float().abs(), atol=1e-5, rtol=0)


def test_eigenvectors_of_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("scipy")
    edges = load("minesweeper-grid", size=7).train[0].edge_index
    monkeypatch.setattr(encodings, "_DENSE_UP_TO", 10)
    found = laplacian_eigenvectors(edges, 49, 4)
    check_eigenvectors(found, edges, 49, 4)
    assert torch.equal(found, laplacian_eigenvectors(edges, 49, 4))


def test_they_come_with_the_set() -> None:
    dataset = load("sbm-cluster", graphs=11, pe={"laplacian_eigenvector_pe": 4, "random_walk_pe": 5})
    assert dataset.pe == {"laplacian_eigenvector_pe": 4, "random_walk_pe": 5}
    for part in (dataset.train, dataset.val, dataset.test):
        for graph in part:
            assert torch.equal(graph.random_walk_pe, random_walk(graph.edge_index, graph.num_nodes, 5))
            check_eigenvectors(graph.laplacian_eigenvector_pe, graph.edge_index, graph.num_nodes, 4)
    assert isinstance(dataset.train, GraphSet)
