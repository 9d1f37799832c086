"""Batches for training and evaluation: whole graphs, or parts of one that is too large for a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from ..data.loader import BatchLoader
from .config import TrainingConfig
from .schema import ConfigError

_MIXED = 0x6C796170

Cut = Callable[[Tensor], Data]


class Loader(Protocol):
    """Gives batches in an order that is a function of the epoch."""

    def set_epoch(self, epoch: int) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Data]: ...


def make_loader(
    graphs: Sequence[Data], training: TrainingConfig, seed: int, shuffle: bool, shard: tuple[int, int]
) -> Loader:
    """The batches of a part of a dataset.

    Args:
        graphs: The graphs.
        training: Which loader, and the size of batches.
        seed: Of the order.
        shuffle: Whether the order changes from epoch to epoch.
        shard: The number of this process, and how many share every batch.
    """
    if training.loader == "full":
        # A single graph cannot be shared: all processes have it, count it alike, and get the same gradient.
        return BatchLoader(graphs, training.batch_size, shuffle, seed, shard=(0, 1) if len(graphs) == 1 else shard)
    if len(graphs) != 1:
        raise ConfigError(f"training.loader = {training.loader!r} divides one graph, but there are {len(graphs)}")
    make = _neighbors if training.loader == "neighbor" else _clusters
    try:
        count, cut = make(graphs[0], training)
    except ImportError as error:
        raise ImportError(f"training.loader = {training.loader!r} needs pyg_lib or torch_sparse: {error}") from error
    return PartLoader(count, cut, training.batch_size, shuffle, seed, shard)


@final
class PartLoader:
    """Batches of parts of one graph, each cut out when its turn comes.

    Args:
        parts: Numbers of the parts.
        cut: The piece of the graph around some parts.
        batch_size: Parts of a batch, over all processes.
        shuffle: In a new order in every epoch.
        seed: Of the order.
        shard: The number of this process, and how many there are.

    >>> from torch_geometric.data import Data
    >>> loader = PartLoader(torch.arange(5), lambda index: Data(x=index[:, None]), 2, False, 0, (0, 1))
    >>> [batch.x.flatten().tolist() for batch in loader]
    [[0, 1], [2, 3], [4]]
    """

    def __init__(
        self, parts: Tensor, cut: Cut, batch_size: int, shuffle: bool, seed: int, shard: tuple[int, int]
    ) -> None:
        world = shard[1]
        if len(parts) < world:
            raise ValueError(f"{len(parts)} parts cannot be divided among {world} processes")
        self.parts, self.cut, self.shuffle, self.seed, self.shard = parts, cut, shuffle, seed, shard
        self.batch_size = max(batch_size, world)
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self.parts), self.batch_size)
        return full + (rest >= self.shard[1])  # what is too little to share goes to the batch before

    def __iter__(self) -> Iterator[Data]:
        order, (rank, world) = self._order(), self.shard
        for i in range(len(self)):
            end = len(order) if i + 1 == len(self) else (i + 1) * self.batch_size
            chosen = order[i * self.batch_size : end]
            yield self.cut(chosen[rank * len(chosen) // world : (rank + 1) * len(chosen) // world])

    def _order(self) -> Tensor:
        if not self.shuffle:
            return self.parts
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        return self.parts[torch.randperm(len(self.parts), generator=generator)]


def mix(*numbers: int) -> int:
    """A seed from several numbers, so that no two lists of numbers have anything in common.

    >>> len({mix(0, 1), mix(1, 0), mix(0), mix(0, 0), mix(0, 0, 0)})
    5
    """
    # NumPy takes zeros at the end for none: what is put behind them tells them apart, and apart from those of others.
    return int(np.random.SeedSequence([*numbers, _MIXED + len(numbers)]).generate_state(1, np.uint64)[0] >> 1)


def _neighbors(graph: Data, training: TrainingConfig) -> tuple[Tensor, Cut]:
    """Nodes that count as the parts, each with a sample of what is around it."""
    from torch_geometric.loader import NeighborLoader

    loader: Any = NeighborLoader(graph, list(training.neighbors))
    mask = getattr(graph, "mask", None)

    def cut(nodes: Tensor) -> Data:
        sample = loader(nodes)
        sample.mask = torch.arange(sample.num_nodes) < sample.batch_size  # the others are there for these
        return sample

    assert graph.num_nodes is not None
    return torch.arange(graph.num_nodes) if mask is None else mask.nonzero()[:, 0], cut


def _clusters(graph: Data, training: TrainingConfig) -> tuple[Tensor, Cut]:
    """Clusters of nodes as the parts; edges between clusters that are not cut out together are lost."""
    from torch_geometric.loader import ClusterData, ClusterLoader

    loader: Any = ClusterLoader(ClusterData(graph, training.clusters, log=False))
    return torch.arange(training.clusters), lambda chosen: loader.collate_fn(chosen.tolist())
