"""Graph property prediction: diameters, distances from a source, and eccentricities of random graphs.

Graphs are drawn as the multitask generator of PNA (Corso et al., 2020) draws them, with the sizes of A-DGN (Gravina et
al., 2023): trees, grids, cliques and random graphs of 25 to 34 nodes, some of whose edges are then taken away or added.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Literal, get_args

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

from .dataset import GraphDataset
from .entries import Entry, Request
from .generated import PARTS, Parts, kept, shares
from .graphs import GraphSet
from .options import check_choice, check_number
from .progress import track

Target = Literal["diameter", "sssp", "eccentricity"]
Labels = Literal["true", "published"]
Scale = Literal["raw", "normalised"]

_OFFICIAL = (5120, 640, 1280)
_SIZES = {"train": range(25, 35), "val": range(25, 30), "test": range(25, 30)}


def _properties(request: Request, target: Target, labels: Labels, scale: Scale, graphs: int, seed: int) -> GraphDataset:
    check_choice("labels", labels, get_args(Labels))
    check_choice("scale", scale, get_args(Scale))
    check_number("seed", seed, least=0)
    counts = shares(graphs, _OFFICIAL)
    key = {"graphs": graphs, "seed": seed, "version": 1}
    parts = kept(request, "gpp", key, lambda: _draw(counts, seed, request.progress))
    column = _COLUMNS[labels][target]
    largest = float(parts["train"].tensors[column].max()) if scale == "normalised" else 1.0
    parts = {name: _labelled(part, column, largest) for name, part in parts.items()}
    return GraphDataset(
        name=f"gpp/{target}",
        task="graph" if target == "diameter" else "node",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        in_channels=2,
        out_channels=1,
        edge_dim=None,
        loss="mse" if target == "diameter" else "mse_by_graph",
        metric="log10_mse",
        provenance={
            "source": "generated here after PNA's multitask generator with the sizes of A-DGN",
            "split": "/".join(map(str, counts)),
            "official": False,
            "labels": labels,
            "label": column,
            "scale": scale,
            "divided by": largest,
            "seed": seed,
        },
    )


# The generators of PNA put the columns as [SSSP, eccentricity, Laplacian of the feature]; A-DGN and those after it read
# the first as the eccentricity and the last as SSSP. Their published numbers are then of other labels than their names.
_COLUMNS: dict[Labels, dict[Target, str]] = {
    "true": {"diameter": "diameter", "sssp": "sssp", "eccentricity": "eccentricity"},
    "published": {"diameter": "diameter", "sssp": "laplacian", "eccentricity": "sssp"},
}


def _labelled(graphs: GraphSet, column: str, largest: float) -> GraphSet:
    pointers = {name: graphs.pointers[name] for name in ("x", "edge_index")} | {"y": graphs.pointers[column]}
    tensors = {name: graphs.tensors[name] for name in ("x", "edge_index")}
    return GraphSet({**tensors, "y": graphs.tensors[column] / largest}, pointers, graphs.node_pointer)


def _draw(counts: tuple[int, int, int], seed: int, progress: bool) -> Parts:
    numbers = _numbers(seed)
    parts = {}
    for part, count in zip(PARTS, counts, strict=True):
        sizes = _SIZES[part]
        wanted = [n for i, n in enumerate(sizes) for _ in range(count // len(sizes) + (i < count % len(sizes)))]
        bar = track(wanted, len(wanted), f"graph properties, {part}", progress)
        parts[part] = GraphSet.of(graph_with_properties(n, numbers) for n in bar)
    return parts


def _numbers(seed: int) -> Iterator[int]:
    """One for every graph that is drawn, also for those that are drawn again; no two seeds have one in common."""
    return itertools.count(seed * 2**32 + 1)


def graph_with_properties(num_nodes: int, numbers: Iterator[int]) -> Data:
    """One graph with its features and all labels.

    Args:
        num_nodes: At least 4.
        numbers: Seeds; one for each attempt, until no node is alone.

    >>> import itertools
    >>> from lyapflow_graph.data.properties import graph_with_properties
    >>> graph_with_properties(6, itertools.count()).eccentricity.shape
    torch.Size([6, 1])
    """
    family: str | None = None
    while True:
        number = next(numbers)
        rng = np.random.default_rng(number)
        if family is None:  # it stays the same if the graph is drawn again
            family = str(rng.choice(list(_FAMILIES), p=[share for share, _ in _FAMILIES.values()]))
        try:
            graph = _FAMILIES[family][1](num_nodes, rng, number)
        except nx.NetworkXError:  # no tree within the tries
            continue
        adjacency = _perturbed(_shuffled(nx.to_numpy_array(graph, weight=None) > 0, rng), rng)
        if adjacency.any(1).all():
            return _with_labels(adjacency, rng)


def _shuffled(adjacency: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    order = rng.permutation(len(adjacency))
    return adjacency[np.ix_(order, order)]


def _perturbed(adjacency: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """With some edges taken away and about as many added."""
    n = len(adjacency)
    edges = adjacency.sum() / 2
    absent = n * (n - 1) / 2 - edges
    if edges <= absent:
        survive, appear = 0.9, 0.1 * edges / absent
    else:
        survive, appear = 0.9 + 0.1 * (edges - absent) / edges, 0.1
    draws = rng.uniform(0, 0.5, (n, n))
    draws = draws + draws.T  # of two draws: the rates in effect are not the nominal ones, which is the generator's way
    chosen = np.where(adjacency, draws < survive, draws < appear)
    np.fill_diagonal(chosen, False)
    return chosen


def _with_labels(adjacency: np.ndarray, rng: np.random.Generator) -> Data:
    n = len(adjacency)
    source = int(rng.integers(n))
    feature = rng.random(n)
    distances = hop_distances(adjacency)
    reachable = np.where(np.isinf(distances), 0.0, distances)
    eccentricity = reachable.max(1)
    x = np.stack([np.arange(n) == source, feature], axis=1)

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.float32)).reshape(-1, 1)

    return Data(
        x=torch.from_numpy(x.astype(np.float32)),
        edge_index=torch.from_numpy(np.stack(adjacency.nonzero())),
        diameter=column(eccentricity.max(keepdims=True)),
        sssp=column(reachable[source]),
        eccentricity=column(eccentricity),
        laplacian=column(adjacency.sum(1) * feature - adjacency @ feature),
    )


def hop_distances(adjacency: np.ndarray) -> np.ndarray:
    """`[n, n]`, how many edges lie between two nodes, infinite where there is no way.

    >>> import numpy as np
    >>> from lyapflow_graph.data.properties import hop_distances
    >>> hop_distances(np.array([[False, True, False], [True, False, False], [False, False, False]]))[0]
    array([ 0.,  1., inf])
    """
    n = len(adjacency)
    distances = np.where(np.eye(n, dtype=bool), 0.0, np.inf)
    reached, step = np.eye(n, dtype=np.float32), adjacency.astype(np.float32)
    for length in range(1, n):
        further = (reached @ step + reached > 0).astype(np.float32)
        new = further > reached
        if not new.any():
            break
        distances[new], reached = length, further
    return distances


# -- families ---------------------------------------------------------------------------------------------------------

_Draw = Callable[[int, np.random.Generator, int], nx.Graph]


def _erdos_renyi(n: int, rng: np.random.Generator, number: int) -> nx.Graph:
    return nx.fast_gnp_random_graph(n, rng.random(), seed=number)


def _barabasi_albert(n: int, rng: np.random.Generator, number: int) -> nx.Graph:
    return nx.barabasi_albert_graph(n, int(rng.integers(1, n)), seed=number)


def _sides(n: int) -> tuple[int, int]:
    shorter = max(m for m in range(1, math.isqrt(n) + 1) if n % m == 0)
    return shorter, n // shorter


def _ladder(n: int, rng: np.random.Generator, number: int) -> nx.Graph:
    graph = nx.ladder_graph(n // 2)
    if n % 2:
        graph.add_edge(0, n - 1)
    return graph


def _caterpillar(n: int, rng: np.random.Generator, number: int) -> nx.Graph:
    backbone = int(rng.integers(1, n))
    graph = nx.path_graph(backbone)
    graph.add_edges_from((int(rng.integers(backbone)), node) for node in range(backbone, n))
    return graph


def _lobster(n: int, rng: np.random.Generator, number: int) -> nx.Graph:
    backbone = int(rng.integers(1, n))
    first = int(rng.integers(backbone + 1, n + 1))
    graph = nx.path_graph(backbone)
    graph.add_edges_from((int(rng.integers(backbone)), node) for node in range(backbone, first))
    graph.add_edges_from((int(rng.integers(backbone, first)), node) for node in range(first, n))
    return graph


_FAMILIES: dict[str, tuple[float, _Draw]] = {
    "erdos_renyi": (0.20, _erdos_renyi),
    "barabasi_albert": (0.20, _barabasi_albert),
    "grid": (0.05, lambda n, rng, number: nx.grid_2d_graph(*_sides(n))),
    "caveman": (0.05, lambda n, rng, number: nx.caveman_graph(*_sides(n))),
    "tree": (0.15, lambda n, rng, number: nx.random_powerlaw_tree(n, seed=number, tries=10000)),
    "ladder": (0.05, _ladder),
    "path": (0.05, lambda n, rng, number: nx.path_graph(n)),
    "star": (0.05, lambda n, rng, number: nx.star_graph(n - 1)),
    "caterpillar": (0.10, _caterpillar),
    "lobster": (0.10, _lobster),
}


def _entry(target: Target, about: str) -> Entry:
    def load(
        request: Request,
        *,
        labels: Labels = "true",
        scale: Scale = "raw",
        graphs: int = sum(_OFFICIAL),
        seed: int = 1234,
    ) -> GraphDataset:
        return _properties(request, target, labels, scale, graphs, seed)

    return Entry(f"gpp/{target}", about, load)


ENTRIES = (
    _entry("diameter", "7,040 random graphs, their diameter"),
    _entry("sssp", "7,040 random graphs, distances from a source"),
    _entry("eccentricity", "7,040 random graphs, the eccentricity of every node"),
)
