"""Positional encodings of all graphs of a set, with the meaning that the transforms of PyTorch Geometric give them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import coalesce, degree, remove_self_loops, to_undirected

from .cache import cached
from .dataset import GraphDataset
from .graphs import GraphSet
from .options import check_choice, check_number
from .progress import track

_DENSE_UP_TO = 2000  # nodes; beyond, powers and eigenvectors of dense matrices cost too much
_BLOCK = 1024  # columns of a large matrix that are worked on at once


def with_encodings(dataset: GraphDataset, pe: Mapping[str, int], root: Path, progress: bool = False) -> GraphDataset:
    """The same dataset whose graphs have positional encodings. What was computed once is kept.

    Args:
        dataset: Without these encodings.
        pe: Their names and widths: "random_walk_pe", the probabilities of being back after 1 to k steps, and
            "laplacian_eigenvector_pe", k eigenvectors of the normalised Laplacian without the first.
        root: The folder above the cache.
        progress: Show a bar.
    """
    for name, width in pe.items():
        check_choice("the name of a positional encoding", name, list(_ENCODINGS))
        check_number(f"the width of {name}", width, least=1)
    parts = (dataset.train, dataset.val, dataset.test)
    done = [_encoded(part, pe, root, progress) for part in parts]
    return dataclasses.replace(dataset, train=done[0], val=done[1], test=done[2], pe={**dataset.pe, **pe})


def _encoded(graphs: Sequence[Data], pe: Mapping[str, int], root: Path, progress: bool) -> GraphSet:
    flat = GraphSet.of(graphs)
    structure = hashlib.sha256()
    for tensor in (flat.node_pointer, flat.pointers["edge_index"], flat.tensors["edge_index"]):
        structure.update(tensor.contiguous().numpy().tobytes())

    def rows(name: str, width: int) -> Tensor:
        def make() -> dict[str, Tensor]:
            bar = track(_structures(flat), len(flat), name, progress)
            return {name: torch.cat([_ENCODINGS[name](edges, n, width) for edges, n in bar])}

        return cached(root, name, {"graphs": structure.hexdigest(), "width": width, "version": 1}, make)[name]

    encoded = flat
    for name, width in pe.items():
        encoded = encoded.with_node_attribute(name, rows(name, width))
    return encoded


def _structures(flat: GraphSet) -> Iterator[tuple[Tensor, int]]:
    edge_index, pointer = flat.tensors["edge_index"], flat.pointers["edge_index"].tolist()
    for i, nodes in enumerate(flat.node_pointer.diff().tolist()):
        yield edge_index[:, pointer[i] : pointer[i + 1]], nodes


def random_walk(edge_index: Tensor, num_nodes: int, width: int) -> Tensor:
    """`[num_nodes, width]`: how likely a walk is back where it began, after 1 to `width` steps.

    >>> import torch
    >>> from lyapflow_graph.data.encodings import random_walk
    >>> random_walk(torch.tensor([[0, 1], [1, 0]]), num_nodes=2, width=3)
    tensor([[0., 1., 0.],
            [0., 1., 0.]])
    """
    if num_nodes <= _DENSE_UP_TO:
        data = Data(edge_index=edge_index, num_nodes=num_nodes)
        return AddRandomWalkPE(width)(data).random_walk_pe
    # The diagonal alone, some columns at a time: powers of the whole matrix would be dense.
    source, target = coalesce(edge_index, num_nodes=num_nodes)
    weight = 1 / degree(source, num_nodes).clamp(min=1)[source]
    places, shape = torch.stack([source, target]), (num_nodes, num_nodes)
    step = torch.sparse_coo_tensor(places, weight, shape, check_invariants=True, is_coalesced=True)
    out = torch.empty(num_nodes, width)
    for start in range(0, num_nodes, _BLOCK):
        nodes = torch.arange(start, min(start + _BLOCK, num_nodes))
        columns = torch.zeros(num_nodes, len(nodes))
        columns[nodes, nodes - start] = 1.0
        for k in range(width):
            columns = torch.sparse.mm(step, columns)
            out[nodes, k] = columns[nodes, nodes - start]
    return out


def laplacian_eigenvectors(edge_index: Tensor, num_nodes: int, width: int) -> Tensor:
    """`[num_nodes, width]`: eigenvectors of the normalised Laplacian by growing eigenvalue, without the first.

    Edges count in both directions. The entry of largest size is positive in every vector, so that the same graph has
    the same encoding; a graph with too few nodes has zeros in the last columns.

    >>> import torch
    >>> from lyapflow_graph.data.encodings import laplacian_eigenvectors
    >>> laplacian_eigenvectors(torch.tensor([[0, 1], [1, 0]]), num_nodes=2, width=2)
    tensor([[ 0.7071,  0.0000],
            [-0.7071,  0.0000]])
    """
    out = torch.zeros(num_nodes, width)
    if num_nodes < 2:
        return out
    edge_index = to_undirected(remove_self_loops(edge_index)[0], num_nodes=num_nodes)
    source, target = edge_index.numpy()
    degrees = np.bincount(source, minlength=num_nodes).astype(np.float64)
    scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1.0))
    found = min(width, num_nodes - 1)
    if num_nodes <= _DENSE_UP_TO:
        laplacian = np.diag((degrees > 0).astype(np.float64))
        laplacian[source, target] -= scale[source] * scale[target]
        vectors = np.linalg.eigh(laplacian)[1][:, 1 : found + 1]
    else:
        vectors = _lowest(source, target, scale[source] * scale[target], degrees, found)
    largest = np.abs(vectors).round(9).argmax(0)  # rounded: entries of equal size must not take turns by rounding
    vectors = vectors * np.where(vectors[largest, np.arange(found)] < 0, -1.0, 1.0)
    out[:, :found] = torch.from_numpy(vectors).float()
    return out


def _lowest(source: np.ndarray, target: np.ndarray, weight: np.ndarray, degrees: np.ndarray, count: int) -> np.ndarray:
    try:
        from scipy.sparse import coo_array, diags_array
        from scipy.sparse.linalg import eigsh
    except ModuleNotFoundError as error:
        raise ImportError(f"eigenvectors of more than {_DENSE_UP_TO} nodes need SciPy: pip install scipy") from error
    n = len(degrees)
    flipped = coo_array((weight, (source, target)), shape=(n, n)).tocsr() + diags_array(2.0 - (degrees > 0))
    start = np.random.default_rng(0).standard_normal(n)  # ARPACK would draw one, and a different one each time
    values, vectors = eigsh(flipped, k=count + 1, which="LA", v0=start)
    return vectors[:, np.argsort(-values)][:, 1:]


_ENCODINGS = {"random_walk_pe": random_walk, "laplacian_eigenvector_pe": laplacian_eigenvectors}
