"""Stochastic block models in the manner of PATTERN and CLUSTER (Dwivedi et al., 2020), drawn here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch_geometric.data import Data

from .dataset import GraphDataset
from .entries import Entry, Request
from .generated import PARTS, Parts, kept, shares
from .graphs import GraphSet
from .options import check_number
from .progress import track

_PATTERN, _CLUSTER = (10000, 2000, 2000), (10000, 1000, 1000)
_PATTERNS = 100  # so many different ones in the official set


@dataclass(frozen=True)
class Pattern:
    """A small graph that is planted in larger ones.

    Args:
        adjacency: Without loops.
        features: A category of each node.
    """

    adjacency: np.ndarray
    features: np.ndarray

    @classmethod
    def drawn(cls, rng: np.random.Generator) -> Pattern:
        size = _block_sizes(1, rng)
        return cls(block_model(size, 0.5, 0.5, rng), rng.integers(0, 3, size.sum()))


def block_model(sizes: np.ndarray, inside: float, between: float, rng: np.random.Generator) -> np.ndarray:
    """An adjacency matrix of blocks of these sizes, with these probabilities of edges.

    >>> import numpy as np
    >>> from lyapflow_graph.data.sbm import block_model
    >>> block_model(np.array([2, 1]), inside=1.0, between=0.0, rng=np.random.default_rng(0)).astype(int)
    array([[0, 1, 0],
           [1, 0, 0],
           [0, 0, 0]])
    """
    block = np.repeat(np.arange(len(sizes)), sizes)
    likely = np.where(block[:, None] == block, inside, between)
    upper = np.triu(rng.random(likely.shape) < likely, 1)
    return upper | upper.T


def planted(pattern: Pattern, rng: np.random.Generator) -> Data:
    """A graph of five blocks with a pattern in it; a node's label is whether it belongs to the pattern."""
    sizes = _block_sizes(5, rng)
    n, m = int(sizes.sum()), len(pattern.features)
    adjacency = np.zeros((n + m, n + m), dtype=bool)
    adjacency[:n, :n] = block_model(sizes, 0.5, 0.35, rng)
    adjacency[n:, n:] = pattern.adjacency
    adjacency[:n, n:] = rng.random((n, m)) < 0.5
    adjacency[n:, :n] = adjacency[:n, n:].T
    features = np.concatenate([rng.integers(0, 3, n), pattern.features])
    return _shuffled(adjacency, np.eye(3)[features], np.arange(n + m) >= n, rng)


def clustered(rng: np.random.Generator) -> Data:
    """A graph of six blocks, in each of which one node's features tell the block; a node's label is its block."""
    sizes = _block_sizes(6, rng)
    block = np.repeat(np.arange(6), sizes)
    features = np.zeros(len(block), dtype=np.int64)
    first = np.cumsum(sizes) - sizes
    features[first + rng.integers(0, sizes)] = np.arange(1, 7)
    return _shuffled(block_model(sizes, 0.55, 0.25, rng), np.eye(7)[features], block, rng)


def _block_sizes(count: int, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(5, 35, count)


def _shuffled(adjacency: np.ndarray, x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> Data:
    order = rng.permutation(len(adjacency))
    edges = np.stack(adjacency[np.ix_(order, order)].nonzero())
    return Data(
        x=torch.from_numpy(x[order].astype(np.float32)),
        edge_index=torch.from_numpy(edges),
        y=torch.from_numpy(y[order].astype(np.int64)),
    )


def _parts(counts: tuple[int, int, int], draw: Callable[[int], Data], about: str, progress: bool) -> Parts:
    """Each is drawn by the number of the graph within its part."""
    return {
        part: GraphSet.of(draw(i) for i in track(range(count), count, f"{about}, {part}", progress))
        for part, count in zip(PARTS, counts, strict=True)
    }


def _pattern(request: Request, *, graphs: int = sum(_PATTERN), seed: int = 0) -> GraphDataset:
    check_number("seed", seed, least=0)
    counts = shares(graphs, _PATTERN)

    def make() -> Parts:
        rng = np.random.default_rng(seed)
        # In smaller sets there are fewer patterns, so that each is seen as often as in the official one.
        patterns = [Pattern.drawn(rng) for _ in range(max(1, round(_PATTERNS * graphs / sum(_PATTERN))))]
        return _parts(counts, lambda i: planted(patterns[i % len(patterns)], rng), "pattern", request.progress)

    parts = kept(request, "sbm-pattern", {"graphs": graphs, "seed": seed, "version": 1}, make)
    return _dataset("sbm-pattern", parts, in_channels=3, classes=2, seed=seed)


def _cluster(request: Request, *, graphs: int = sum(_CLUSTER), seed: int = 0) -> GraphDataset:
    check_number("seed", seed, least=0)
    counts = shares(graphs, _CLUSTER)

    def make() -> Parts:
        rng = np.random.default_rng(seed)
        return _parts(counts, lambda _: clustered(rng), "cluster", request.progress)

    parts = kept(request, "sbm-cluster", {"graphs": graphs, "seed": seed, "version": 1}, make)
    return _dataset("sbm-cluster", parts, in_channels=7, classes=6, seed=seed)


def _dataset(name: str, parts: Parts, in_channels: int, classes: int, seed: int) -> GraphDataset:
    return GraphDataset(
        name=name,
        task="node",
        train=parts["train"],
        val=parts["val"],
        test=parts["test"],
        in_channels=in_channels,
        out_channels=classes,
        edge_dim=None,
        loss="weighted_cross_entropy",
        metric="weighted_accuracy",
        provenance={
            "source": "generated here with the parameters of benchmarking-gnns (Dwivedi et al., 2020)",
            "split": "/".join(str(len(parts[part])) for part in PARTS),
            "official": False,
            "differs": "drawn anew: the official graphs were drawn without a known seed",
            "seed": seed,
        },
    )


ENTRIES = (
    Entry("sbm-pattern", "14,000 graphs drawn like PATTERN", _pattern),
    Entry("sbm-cluster", "12,000 graphs drawn like CLUSTER", _cluster),
)
