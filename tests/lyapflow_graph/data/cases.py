"""What every benchmark has to be good for."""

from __future__ import annotations

from typing import Any

import torch

from lyapflow_graph import GatedGCN, GraphNet
from lyapflow_graph.data import BatchLoader, Benchmark


def trainable(benchmark: Benchmark) -> None:
    """A model made from what the benchmark says takes its batches, and its output fits the labels."""
    edge_dim = None if benchmark.edge_dim is None else benchmark.edge_dim if isinstance(benchmark.edge_dim, int) else 8
    body = GatedGCN(8, num_layers=1, edge_dim=edge_dim)
    options: dict[str, Any] = {"task": benchmark.task, "edge_dim": benchmark.edge_dim, "pe": benchmark.pe}
    model = GraphNet(benchmark.in_channels, 8, benchmark.out_channels, body, **options)
    for part in (benchmark.train, benchmark.val, benchmark.test):
        batch = next(iter(BatchLoader(part, 2)))
        out = model(batch)
        if "cross_entropy" in benchmark.loss and benchmark.loss != "binary_cross_entropy":
            assert batch.y.dtype == torch.long
            assert batch.y.shape == out.shape[:1]
            assert int(batch.y.max()) < benchmark.out_channels
        else:
            assert batch.y.is_floating_point()
            assert batch.y.shape == out.shape
        if "mask" in batch:
            assert batch.mask.dtype == torch.bool
            assert batch.mask.any()
