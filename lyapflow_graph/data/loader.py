"""Mini-batches of graphs, cut out of flat tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from .graphs import GraphSet


@final
class BatchLoader:
    """Mini-batches of graphs, each equal to `Batch.from_data_list` of the same graphs.

    All graphs are collated once; a batch is then cut out by index arithmetic. The order is a function of `seed` and the
    epoch alone, whatever else draws random numbers. A single graph is given as it is, the same object every time.

    Args:
        graphs: `Data` objects with the same attributes, or a :class:`GraphSet`.
        batch_size: Graphs of a batch; over all processes together, where there are several.
        shuffle: In a new order in every epoch.
        seed: Of the order.
        drop_last: Leave out a last batch that is smaller than the others.
        shard: The number of this process, and how many there are. Each gets a part of every batch: all parts together,
            one after the other, are the batch that one process alone would get. A process that nothing is left for
            gets a batch of no graphs, so that all of them have equally many.

    >>> import torch
    >>> from torch_geometric.data import Data
    >>> from lyapflow_graph.data import BatchLoader
    >>> graphs = [Data(x=torch.full((n, 1), float(n)), edge_index=torch.tensor([[0], [1]])) for n in (2, 3, 4)]
    >>> loader = BatchLoader(graphs, batch_size=2)
    >>> [batch.ptr.tolist() for batch in loader]
    [[0, 2, 5], [0, 4]]
    >>> loader = BatchLoader(graphs, batch_size=1, shuffle=True, seed=7)
    >>> loader.set_epoch(3)
    >>> order = [batch.num_nodes for batch in loader]
    >>> loader.set_epoch(3, start=1)
    >>> [batch.num_nodes for batch in loader] == order[1:]
    True
    """

    def __init__(
        self,
        graphs: Sequence[Data],
        batch_size: int,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        shard: tuple[int, int] = (0, 1),
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be positive, got {batch_size}")
        if seed < 0:
            raise ValueError(f"seed must not be negative, got {seed}")
        rank, world = shard
        if world < 1 or not 0 <= rank < world:
            raise ValueError(f"shard must be (rank, world) with 0 <= rank < world, got {shard}")
        if len(graphs) == 0:
            raise ValueError("graphs must be at least one, got none")
        if len(graphs) == 1 and world > 1:
            raise ValueError(f"one graph cannot be divided among {world} processes; leave shard away")
        if drop_last and 1 < len(graphs) < batch_size:
            raise ValueError(f"drop_last leaves nothing of {len(graphs)} graphs in batches of {batch_size}")
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.shard = rank, world
        self._graphs = graphs[0] if len(graphs) == 1 else GraphSet.of(graphs)
        self._count = len(graphs)
        self.epoch, self.start = 0, 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Choose the order of the iterations to come.

        Args:
            epoch: Each has its own order, if they are shuffled.
            start: The batch to begin with, to go on where a run was interrupted. It holds until the next call.
        """
        if epoch < 0:
            raise ValueError(f"epoch must not be negative, got {epoch}")
        if not 0 <= start <= len(self):
            raise ValueError(f"start must lie in 0 to {len(self)}, the number of batches; got {start}")
        self.epoch, self.start = epoch, start

    def __len__(self) -> int:
        """Batches of a whole epoch, also where `start` leaves some out."""
        if isinstance(self._graphs, Data):
            return 1
        full, rest = divmod(self._count, self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Iterator[Data]:
        graphs, (rank, world) = self._graphs, self.shard
        if isinstance(graphs, Data):
            yield from [graphs][self.start :]
            return
        order = self._order()
        for i in range(self.start, len(self)):
            chosen = order[i * self.batch_size : (i + 1) * self.batch_size]
            count = chosen.shape[0]
            yield graphs.batch(chosen[rank * count // world : (rank + 1) * count // world])

    def _order(self) -> Tensor:
        if not self.shuffle:
            return torch.arange(self._count)
        # Seeds that are near each other, and epochs of one and the next, must not share orders.
        mixed = int(np.random.SeedSequence([self.seed, self.epoch]).generate_state(1, np.uint64)[0] >> 1)
        return torch.randperm(self._count, generator=torch.Generator().manual_seed(mixed))

    def __repr__(self) -> str:
        return f"BatchLoader(graphs={self._count}, batch_size={self.batch_size}, shuffle={self.shuffle})"
